"""MXNet's symbol JSON, in and out, of every version.

    {"nodes": [{"op": "null", "name": "data", "attrs": {…}, "inputs": [[node, output, version], …]}, …],
     "arg_nodes": […], "node_row_ptr": […], "heads": [[node, output, version], …],
     "attrs": {"mxnet_version": ["int", 10901]}}

In a graph that was written in numpy mode, `attrs` has `"is_np_shape": ["int", 1]` too.

Files of older versions are upgraded as MXNet 1.9.1 does: `attr` and `param` for `attrs`, inputs and heads without a
version, hidden keys without underscores (`lr_mult`, and `weight_lr_mult` for the variable in that place), inputs that
were implied (an 0.8 BatchNorm has no auxiliary inputs), `axis=-1` of argmax.

A node of a control-flow operator has `"subgraphs": [graph, …]`, graphs like the whole but without `attrs`.

Client and server have nodes of their own: `read` makes them through a `Maker`, `write` asks for a `NodeRow` of each.
"""

from __future__ import annotations

from .content import check_size, content_hash
from .nodes import SOURCE, Maker, NodeRow, ParsedCall
from .reading import read
from .writing import write

__all__ = ["SOURCE", "Maker", "ParsedCall", "NodeRow", "check_size", "content_hash", "read", "write"]
