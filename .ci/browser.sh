#!/bin/sh
# Chromium and its driver, as Debian has them, for the tests of the page: installed where they are missing and we are root.
set -eu
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "the tests of the page need chromium and chromedriver: install them, on Debian as root with: apt-get install chromium chromium-driver" >&2
  exit 1
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium chromium-driver fonts-dejavu-core
