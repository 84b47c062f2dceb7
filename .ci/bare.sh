#!/bin/sh
# bare.sh [SUITE]: a minimal Debian with README's packages and nothing else, as .bare/SUITE.tar, for make test-bare.
# mmdebstrap makes it of what this machine's apt offers; it is installed where it is missing and we are root. Where none
# can be made, the tests are skipped, and counted.
set -eu
cd "$(dirname "$0")/.."
suite=${1:-bookworm}
packages=$(sed -n 's/^apt-get install //p' README.md | head -n 1 | tr ' ' ,)
if [ -e ".bare/$suite.tar" ] && [ "$(cat ".bare/$suite.packages")" = "$packages" ]; then exit 0; fi
mkdir -p .bare
rm -f .bare/"$suite".*
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "a root of Debian is made by root, with apt-get: the tests on a bare machine are skipped" >&2
  exit 0
fi
if ! command -v mmdebstrap >/dev/null; then
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends mmdebstrap; } >&2 || {
    echo "mmdebstrap cannot be installed: the tests on a bare machine are skipped" >&2
    exit 0
  }
fi
# How this machine's apt reaches Debian: its settings, and its sources where they are of the same Debian.
apt-config dump | grep -iE '^Acquire::(http|https|Check|Retries)' >".bare/$suite.conf" || true
sources=$(grep -lE "^(Suites:.*|deb .*)\b$suite\b" /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
# shellcheck disable=SC2086  # one argument for each file
mmdebstrap --quiet --variant=minbase --include="$packages" --aptopt="$PWD/.bare/$suite.conf" "$suite" ".bare/$suite.part" $sources \
  --format=tar || {
  rm -f ".bare/$suite.part"
  echo "Debian $suite cannot be fetched: the tests on a bare machine are skipped" >&2
  exit 0
}
mv ".bare/$suite.part" ".bare/$suite.tar"
echo "$packages" >".bare/$suite.packages"
