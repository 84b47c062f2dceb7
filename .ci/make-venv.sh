#!/bin/sh
# make-venv.sh FOLDER: a virtual environment with pip, also where Debian's python3-venv is missing but pip is there.
set -eu
folder=$1
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  echo "opbox needs Python 3.11 or later; '$python' is $("$python" --version 2>&1 || echo missing). Name another with" \
    "PYTHON=..., or install it, on Debian with: apt-get install python3-venv" >&2
  exit 1
}
[ -x "$folder/bin/python" ] && "$folder/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
rm -rf "$folder"
# The pip that is there installs another in a third of the processor time that venv takes to install its own.
if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip "$folder" >/dev/null 2>&1 &&
  "$python" -m pip --disable-pip-version-check -q --python "$folder/bin/python" install --no-compile pip >/dev/null 2>&1; then
  exit 0
fi
rm -rf "$folder"
"$python" -m venv "$folder" >/dev/null 2>&1 && exit 0
rm -rf "$folder"
echo "cannot make a virtual environment: install it first, on Debian with: apt-get install python3-venv" >&2
exit 1
