#!/bin/sh
# The packages on the other Pythons that they are made for, as far as this machine has them: installed with the pinned
# versions, and a slice of the tests runs: what an import loads, the wire, the executor, symbols, settings, whether all that was
# installed is pinned, and a client at a live server, once with threads and once with a worker process. All Pythons at once, each on a core. Arguments are pytest's.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

try() {  # VERSION PYTHON [pytest's arguments]
  folder=.venv-$1
  PYTHON=$2 sh .ci/make-venv.sh "$folder"
  shift 2
  "$folder/bin/python" -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt -r .ci/pythons.txt \
    -e protocol -e ops -e client -e service
  echo "== $("$folder/bin/python" --version)"
  "$folder/bin/python" -m pytest -p no:cacheprovider -n 0 -k "not modules_of_operators and not declares_reaches" "$@" \
    tests/client/test_lazy_imports.py tests/client/test_symbol.py tests/protocol tests/executor/test_executor.py \
    tests/service/test_settings.py tests/contract/test_json.py tests/test_packages.py
}

tried=
for version in 3.12 3.13; do
  python=
  for candidate in "$HOME"/.pyenv/versions/"$version".*/bin/python "python$version"; do
    if [ -z "$python" ] && "$candidate" -c 1 >/dev/null 2>&1; then python=$candidate; fi
  done
  if [ -z "$python" ]; then
    echo "Python $version: not on this machine, not tried"
    continue
  fi
  tried="$tried $version"
  (try "$version" "$python" "$@"; touch "$scratch/passed-$version") >"$scratch/log-$version" 2>&1 &
done
wait
failed=0
for version in $tried; do
  cat "$scratch/log-$version"
  [ -e "$scratch/passed-$version" ] || { echo "Python $version: failed" >&2; failed=1; }
done
echo "Pythons beside this one tried:${tried:- none}"
exit "$failed"
