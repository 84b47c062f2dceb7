#!/bin/sh
# The stateless routes from curl, in plain JSON: infer_shape, forward, backward.
#
#     OPBOX_URL=http://127.0.0.1:8000 OPBOX_TOKEN=... sh examples/curl_session.sh
#
# The graph is out = data x weight^T + bias, with data (2, 3) and 2 hidden units.
set -eu
: "${OPBOX_URL:?set OPBOX_URL to the address that opbox serve printed}"
: "${OPBOX_TOKEN:?set OPBOX_TOKEN to the token that opbox serve printed}"

post() {
    curl --silent --show-error --fail-with-body --header "Authorization: Bearer $OPBOX_TOKEN" \
        --header "Content-Type: application/json" --data @- "$OPBOX_URL$1"
    echo
}

GRAPH='{
  "nodes": [
    {"op": "null", "name": "data", "inputs": []},
    {"op": "null", "name": "fc_weight", "inputs": []},
    {"op": "null", "name": "fc_bias", "inputs": []},
    {"op": "FullyConnected", "name": "fc", "attrs": {"num_hidden": "2"}, "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]]}
  ],
  "arg_nodes": [0, 1, 2],
  "heads": [[3, 0, 0]]
}'
INPUTS='[
  {"name": "data", "shape": [2, 3], "datatype": "FP32", "data": [[1, 2, 3], [4, 5, 6]]},
  {"name": "fc_weight", "shape": [2, 3], "datatype": "FP32", "data": [[1, 0, -1], [0.5, 0.5, 0.5]]},
  {"name": "fc_bias", "shape": [2], "datatype": "FP32", "data": [10, 20]}'

echo "== infer_shape: what is missing is found"
post /v1/infer_shape <<JSON
{"graph": $GRAPH, "shapes": {"data": [2, 3]}}
JSON

echo "== forward: expected 8, 23, 8, 27.5"
post /v1/forward <<JSON
{"graph": $GRAPH, "inputs": $INPUTS]}
JSON

echo "== backward: gradients of all arguments, for a head gradient of ones"
post /v1/backward <<JSON
{"graph": $GRAPH, "inputs": $INPUTS,
  {"name": "head_grad:fc_output", "shape": [2, 2], "datatype": "FP32", "data": [[1, 1], [1, 1]]}]}
JSON
