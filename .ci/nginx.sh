#!/bin/sh
# nginx, as Debian has it, unpacked into .nginx for the tests: nothing is installed, and no service is started. A machine
# that has an nginx uses that. Where neither can be had, the tests are skipped, and the skips are counted.
set -eu
cd "$(dirname "$0")/.."
if command -v nginx >/dev/null || .nginx/usr/sbin/nginx -v 2>/dev/null; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "no nginx, and no apt-get to fetch Debian's: its tests are skipped" >&2
  exit 0
fi
rm -rf .nginx
mkdir -p .nginx/package
(
  cd .nginx/package
  apt-get download -q -o APT::Sandbox::User=root nginx || { [ "$(id -u)" = 0 ] && apt-get update -q && apt-get download -q -o APT::Sandbox::User=root nginx; }
) || {
  echo "nginx could not be fetched from Debian: its tests are skipped" >&2
  exit 0
}
dpkg-deb -x .nginx/package/nginx_*.deb .nginx
.nginx/usr/sbin/nginx -v || echo "Debian's nginx does not run here: its tests are skipped" >&2
