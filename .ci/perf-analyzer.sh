#!/bin/sh
# perf-analyzer.sh PYTHON: Triton's perf_analyzer, unpacked into .perf-analyzer with the libraries that it loads: nothing
# is installed. Where it cannot be had, its test is skipped, and counted.
set -eu
cd "$(dirname "$0")/.."
here=.perf-analyzer
[ -e $here/.ready ] && exit 0
if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "no perf_analyzer for this machine: its test is skipped" >&2
  exit 0
fi
rm -rf $here
mkdir -p $here/package
"$1" -m pip install -q --disable-pip-version-check --no-deps --no-compile --target $here/site -r .ci/perf-analyzer.txt
fetch() { apt-get download -q -o APT::Sandbox::User=root libb64-0d; }
(
  cd $here/package
  fetch || { [ "$(id -u)" = 0 ] && apt-get update -q && fetch; }
) || {
  echo "libb64-0d could not be fetched from Debian: the test of perf_analyzer is skipped" >&2
  exit 0
}
for package in $here/package/*.deb; do dpkg-deb -x "$package" $here; done
touch $here/.ready
