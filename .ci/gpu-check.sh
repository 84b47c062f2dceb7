#!/bin/sh
# The stages of tests/gpu_check, on a machine with a GPU and perhaps no network. Fails when no GPU is there.
set -eu
python=${PYTHON:-python3}
if [ -d .wheels ]; then
  rm -rf .wheels/site
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target .wheels/site .wheels/*.whl
fi
"$python" .ci/metadata.py .wheels/site
# What a wheel has for lib is lost by --target.
for wheel in .wheels/onednn_cpu_gomp-*.whl; do
  if [ -f "$wheel" ]; then
    "$python" -m zipfile -e "$wheel" .wheels/onednn
    OPBOX_ONEDNN=$(find "$PWD/.wheels/onednn" -name libdnnl.so.3)
    export OPBOX_ONEDNN
  fi
done
PYTHONPATH="$PWD/protocol:$PWD/client:$PWD/ops:$PWD/service:$PWD/.wheels/site${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
if [ -d build/cubins ]; then
  export OPBOX_CUBINS="$PWD/build/cubins"
fi
exec "$python" -m tests.gpu_check "$@"
