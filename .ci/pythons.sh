#!/bin/sh
# The packages on the other Pythons that they are made for, as far as this machine has them: installed with the pinned
# versions, and the tests that take little run.
set -eu
tried=0
for version in 3.12 3.13; do
  python=
  for candidate in "$HOME"/.pyenv/versions/"$version".*/bin/python "python$version"; do
    if [ -z "$python" ] && "$candidate" -c 1 >/dev/null 2>&1; then python=$candidate; fi
  done
  if [ -z "$python" ]; then
    echo "Python $version: not on this machine, not tried"
    continue
  fi
  tried=$((tried + 1))
  folder=.venv-$version
  PYTHON=$python sh .ci/make-venv.sh "$folder"
  "$folder/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt \
    -e protocol -e ops -e client -e service
  echo "== $("$folder/bin/python" --version)"
  "$folder/bin/python" -m pytest -p no:cacheprovider -m "not conformance and not nvrtc and not docs and not clients" "$@" tests/protocol tests/graph \
    tests/executor/test_executor.py tests/client/test_symbol.py tests/client/test_ndarray.py tests/service/test_settings.py
done
echo "Pythons beside this one tried: $tried"
