#!/bin/sh
# HAProxy, as Debian has it, unpacked into .haproxy for the tests, with its libraries: nothing is installed, and no
# service is started. A machine that has one uses that. Where neither can be had, its test is skipped, and counted.
set -eu
cd "$(dirname "$0")/.."
if command -v haproxy >/dev/null || [ -e .haproxy/usr/sbin/haproxy ]; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "no haproxy, and no apt-get to fetch Debian's: its test is skipped" >&2
  exit 0
fi
rm -rf .haproxy
mkdir -p .haproxy/package
fetch() { apt-get download -q -o APT::Sandbox::User=root haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1; }
(
  cd .haproxy/package
  fetch || { [ "$(id -u)" = 0 ] && apt-get update -q && fetch; }
) || {
  echo "haproxy could not be fetched from Debian: its test is skipped" >&2
  exit 0
}
for package in .haproxy/package/*.deb; do dpkg-deb -x "$package" .haproxy; done
libraries=$(echo .haproxy/usr/lib/*-linux-gnu)
if ! LD_LIBRARY_PATH=$libraries .haproxy/usr/sbin/haproxy -v; then
  echo "Debian's haproxy does not run here: its test is skipped" >&2
  rm -rf .haproxy
fi
