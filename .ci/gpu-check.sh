#!/bin/sh
# All GPU tests and benchmarks, on a machine with a GPU and perhaps no network. Fails when no GPU is there.
set -eu
python=${PYTHON:-python3}
if [ -d .wheels ]; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target .wheels/site .wheels/*.whl
fi
"$python" .ci/metadata.py .wheels/site
PYTHONPATH="$PWD/protocol:$PWD/client:$PWD/ops:$PWD/service:$PWD/.wheels/site${PYTHONPATH:+:$PYTHONPATH}"
OPBOX_TEST_REQUIRE_GPU=1
export PYTHONPATH OPBOX_TEST_REQUIRE_GPU
"$python" -m pytest -rs -m "not conformance" tests/ops tests/executor tests/contract "$@"
"$python" benchmarks/custom_op_paths.py --gpu
