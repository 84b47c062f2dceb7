#!/bin/sh
# The server from curl, in plain JSON: infer_shape, forward and backward without a session, and a training step in one.
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

echo "== a session: arrays that stay, and a step of gradient descent on them"
SESSION=$(post /v1/sessions </dev/null | sed -n 's/.*"id":"\([0-9a-z-]*\)".*/\1/p')
trap 'curl --silent --request DELETE --header "Authorization: Bearer $OPBOX_TOKEN" "$OPBOX_URL/v1/sessions/$SESSION"; echo' EXIT

echo "== put the arrays (1 to 3), room for the weight's gradient (4), and bind the graph to them (5)"
post "/v1/sessions/$SESSION/commands" <<JSON
{"inputs": $INPUTS, {"name": "room", "shape": [2, 3], "datatype": "FP32", "data": [[0, 0, 0], [0, 0, 0]]}],
 "commands": [
   {"do": "put", "id": 1, "tensor": "data"}, {"do": "put", "id": 2, "tensor": "fc_weight"},
   {"do": "put", "id": 3, "tensor": "fc_bias"}, {"do": "put", "id": 4, "tensor": "room"},
   {"do": "bind", "id": 5, "graph": $GRAPH, "args": {"data": 1, "fc_weight": 2, "fc_bias": 3},
    "grads": {"fc_weight": 4}, "grad_req": {"data": "null", "fc_weight": "write", "fc_bias": "null"},
    "outputs": [6]}]}
JSON

echo "== forward, backward for a head gradient of ones, weight -= 0.1 * gradient: expected 0.5, -0.7, -1.9, 0, -0.2, -0.4"
post "/v1/sessions/$SESSION/commands" <<JSON
{"inputs": [{"name": "ones", "shape": [2, 2], "datatype": "FP32", "data": [[1, 1], [1, 1]]}],
 "commands": [
   {"do": "put", "id": 7, "tensor": "ones"},
   {"do": "forward", "executor": 5, "is_train": true}, {"do": "backward", "executor": 5, "head_grads": [7]},
   {"do": "update", "op": "sgd_update", "attrs": {"lr": "0.1"}, "calls": [{"inputs": [2, 4]}]},
   {"do": "fetch", "id": 2, "as": "fc_weight"}]}
JSON

echo "== end the session; all that it held is freed"
