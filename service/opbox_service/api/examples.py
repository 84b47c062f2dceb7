"""Examples of the OpenAPI document: bodies that work as they stand, and what they are answered.

A test sends each of them to a server and compares the answer (`tests/contract/test_openapi.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from opbox_protocol import routes as paths

__all__ = ["BLOCK", "EXAMPLES", "Example"]

GRAPH: dict[str, Any] = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "fc_weight", "inputs": []},
        {"op": "null", "name": "fc_bias", "inputs": []},
        {
            "op": "FullyConnected",
            "name": "fc",
            "attrs": {"num_hidden": "2"},
            "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]],
        },
    ],
    "arg_nodes": [0, 1, 2],
    "heads": [[3, 0, 0]],
}
"""out = data x weight^T + bias, with data (2, 3) and 2 hidden units."""


def _tensor(name: str, shape: list[int], *data: float) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": "FP32", "data": list(data)}


INPUTS = [
    _tensor("data", [2, 3], 1, 2, 3, 4, 5, 6),
    _tensor("fc_weight", [2, 3], 1, 0, -1, 0.5, 0.5, 0.5),
    _tensor("fc_bias", [2], 10, 20),
]

GRADIENTS = {
    "inputs": [_tensor("data", [1, 4], 1, 2, 3, 4), _tensor("softmax_label", [1], 2)],
    "outputs": [{"name": "grad:data"}],
}
"""The request for the gradient of a loss by its input."""
BLOCK = "039058c6f2c0cb492c533b0a4d14ef77cc0f78abccced5287d84a1a2011cfb81"
"""SHA-256 of the bytes 1, 2 and 3."""


@dataclass(frozen=True, slots=True)
class Example:
    """A body of a request, and the answer's; None where nothing is sent, or where every server answers otherwise.

    Attributes:
        refused: the status that a server answers which was started without settings; 0 where it is success.
    """

    request: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    refused: int = 0


def _file(name: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "shape": [len(content)], "datatype": "UINT8", "data": list(content)}


SUM = (
    b'{"nodes": [{"op": "null", "name": "x", "inputs": []}, {"op": "null", "name": "w", "inputs": []}, '
    b'{"op": "broadcast_add", "name": "y", "inputs": [[0, 0, 0], [1, 0, 0]]}], "arg_nodes": [0, 1], '
    b'"heads": [[2, 0, 0]]}'
)
"""y = x + w."""
ONE = (
    struct.pack("<QQQ", 0x112, 0, 1)
    + struct.pack("<IiIqiiif", 0xF993FAC9, 0, 1, 1, 1, 0, 0, 1.0)
    + struct.pack("<QQ5s", 1, 5, b"arg:w")
)
"""A file of parameters: w is 1."""

EXAMPLES: dict[tuple[str, str], Example] = {
    ("POST", paths.INFER_SHAPE): Example(
        {"graph": GRAPH, "shapes": {"data": [2, 3]}},
        {
            "arg_names": ["data", "fc_weight", "fc_bias"],
            "arg_shapes": [[2, 3], [2, 3], [2]],
            "out_names": ["fc_output"],
            "out_shapes": [[2, 2]],
            "aux_names": [],
            "aux_shapes": [],
            "complete": True,
        },
    ),
    ("POST", paths.INFER_TYPE): Example(
        {"graph": GRAPH, "types": {"data": "float16"}},
        {
            "arg_names": ["data", "fc_weight", "fc_bias"],
            "arg_types": ["float16", "float16", "float16"],
            "out_names": ["fc_output"],
            "out_types": ["float16"],
            "aux_names": [],
            "aux_types": [],
            "complete": True,
        },
    ),
    ("PUT", paths.GRAPHS): Example({"graph": GRAPH}),
    ("POST", paths.FORWARD): Example(
        {"graph": GRAPH, "inputs": INPUTS},
        {"outputs": [_tensor("fc_output", [2, 2], 8, 23, 8, 27.5)]},
    ),
    ("POST", paths.BACKWARD): Example(
        {
            "graph": GRAPH,
            "inputs": [*INPUTS, _tensor("head_grad:fc_output", [2, 2], 1, 1, 1, 1)],
            "parameters": {"grads": ["fc_weight"]},
        },
        {
            "outputs": [
                _tensor("fc_output", [2, 2], 8, 23, 8, 27.5),
                _tensor("grad:fc_weight", [2, 3], 5, 7, 9, 5, 7, 9),
            ]
        },
    ),
    ("POST", paths.SESSIONS): Example({"device": "cpu", "ttl_s": 60}),
    ("POST", paths.COMMANDS): Example(
        {
            "inputs": [_tensor("x", [3], 1, 2, 3)],
            "commands": [
                {"do": "put", "id": 1, "tensor": "x"},
                {"do": "invoke", "op": "square", "inputs": [1], "outputs": [2]},
                {"do": "fetch", "id": 2, "as": "y"},
            ],
        },
        {"results": [], "outputs": [_tensor("y", [3], 1, 4, 9)]},
    ),
    ("POST", paths.BLOCKS): Example({"blocks": [BLOCK]}),
    ("PUT", paths.BLOCK): Example(
        {"inputs": [{"name": "rows", "shape": [3, 1], "datatype": "UINT8", "data": [1, 2, 3]}]},
    ),
    ("PUT", paths.DATASET): Example(
        {"arrays": {"data": {"shape": [3, 1], "dtype": "uint8", "block_rows": 3, "blocks": [BLOCK]}}},
    ),
    ("PUT", paths.LISTED_MODEL): Example(
        {"inputs": [_file("sum-symbol.json", SUM), _file("sum.params", ONE)], "callers": ["bob"]},
    ),
    ("POST", paths.REPOSITORY_INDEX): Example({"ready": True}),
    ("POST", paths.MODEL_LOAD): Example({}, {}),
    ("POST", paths.MODEL_INFER): Example({"id": "1", "inputs": [_tensor("data", [1, 4], 1, 2, 3, 4)]}),
    ("POST", paths.MODEL_VERSION_INFER): Example({"inputs": [_tensor("data", [1, 4], 1, 2, 3, 4)]}),
    **{("POST", path): Example({"text_input": "A story"}, refused=501) for path in paths.MODEL_TEXTS},
    ("POST", paths.MODEL_BACKWARD): Example(GRADIENTS),
    ("POST", paths.MODEL_VERSION_BACKWARD): Example(GRADIENTS),
    ("POST", paths.MODEL_UNLOAD): Example({}, {}),
    ("POST", paths.TRACE): Example({"trace_level": ["OFF"]}),
    ("POST", paths.MODEL_TRACE): Example({"trace_level": ["OFF"]}),
    ("POST", paths.LOGGING): Example({"log_error": True}),
    ("POST", paths.SYSTEM_MEMORY_REGION + "/register"): Example({"key": "/images", "byte_size": 4096}, refused=501),
    ("POST", paths.SYSTEM_MEMORY_REGION + "/unregister"): Example({}, {}),
    ("POST", paths.SYSTEM_MEMORY + "/unregister"): Example({}, {}),
    ("POST", paths.CUDA_MEMORY_REGION + "/register"): Example(
        {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4096}, refused=501
    ),
    ("POST", paths.CUDA_MEMORY_REGION + "/unregister"): Example({}, {}),
    ("POST", paths.CUDA_MEMORY + "/unregister"): Example({}, {}),
    ("GET", paths.LIVE): Example(answer={"live": True}),
    ("GET", paths.READY): Example(answer={"ready": True}),
}
"""Example body and answer by method and path."""
