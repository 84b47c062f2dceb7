#!/bin/sh
# promtool and amtool, as Debian has them, unpacked into .prometheus for make check-compose: nothing is installed, and no
# service is started. A machine that has them uses those. Where they cannot be had, their tests are skipped, and the skips
# are counted.
set -eu
cd "$(dirname "$0")/.."
for tool in promtool:prometheus amtool:prometheus-alertmanager; do
  name=${tool%:*} package=${tool#*:}
  if command -v "$name" >/dev/null || ".prometheus/usr/bin/$name" --version >/dev/null 2>&1; then continue; fi
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no $name, and no apt-get to fetch Debian's: its tests are skipped" >&2
    continue
  fi
  mkdir -p .prometheus/package
  fetch() { apt-get download -q -o APT::Sandbox::User=root "$package"; }
  if (cd .prometheus/package && { fetch || { [ "$(id -u)" = 0 ] && apt-get update -q && fetch; }; }); then
    dpkg-deb -x .prometheus/package/"$package"_*.deb .prometheus
    ".prometheus/usr/bin/$name" --version >/dev/null || echo "Debian's $name does not run here: its tests are skipped" >&2
  else
    echo "$name could not be fetched from Debian: its tests are skipped" >&2
  fi
  rm -rf .prometheus/package
done
