"""opbox's operator registry and its operators: parameters, shape and type rules, gradients, compute on each device.

Graphs, execution, sessions and HTTP live in opbox_service; nothing here imports them.
"""

from .compute import CallSpec, Kernel, OpContext, OpReq, Temp
from .gradient import backward_node, grad_use_in, grad_use_none, grad_use_out, make_node
from .node import Entry, Node
from .params import Field, Params
from .registry import (
    Counted,
    Op,
    Slot,
    Variadic,
    attribute,
    extend,
    find,
    get,
    load,
    names,
    register,
    register_backward,
    unless,
    when,
)

__all__ = [
    "CallSpec",
    "Counted",
    "Entry",
    "Field",
    "Kernel",
    "Node",
    "Op",
    "OpContext",
    "OpReq",
    "Params",
    "Slot",
    "Temp",
    "Variadic",
    "attribute",
    "backward_node",
    "extend",
    "find",
    "get",
    "grad_use_in",
    "grad_use_none",
    "grad_use_out",
    "load",
    "make_node",
    "names",
    "register",
    "register_backward",
    "unless",
    "when",
]
