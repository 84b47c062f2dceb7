"""Suggestions for members of other libraries' tensors that NDArrays and Symbols lack."""

from __future__ import annotations

from typing import Any

__all__ = ["member_error"]

_GRADIENTS = "gradients are computed for symbols: simple_bind one, and call its executor's backward()"
_TRAINING = "mx.mod.Module(symbol) has it"
_EXECUTOR = "simple_bind makes an executor, which has it"
_MEMBERS: dict[str, dict[str, str]] = {
    "NDArray": {
        "numpy": "asnumpy() returns the values",
        "tolist": "asnumpy().tolist() returns the values as lists",
        "view": "reshape(shape) gives the same memory other dimensions",
        "type": "astype(dtype) gives another element type",
        "float": 'astype("float32") gives another element type',
        "long": 'astype("int64") gives another element type',
        "to": "as_in_context(mx.gpu(0)) gives it on a device",
        "cuda": "as_in_context(mx.gpu(0)) gives it on a device",
        "cpu": "as_in_context(mx.cpu()) gives it on a device",
        "append": "mx.nd.concat(x, y, dim=0) joins arrays",
        "attach_grad": _GRADIENTS,
        "backward": _GRADIENTS,
        "grad": _GRADIENTS,
    },
    "Symbol": {
        "shape": "infer_shape(data=(…)) tells the shapes for those of the inputs",
        "dtype": "infer_type(data=…) tells the types for those of the inputs",
        "fit": _TRAINING,
        "predict": _TRAINING,
        "score": _TRAINING,
        "forward": _EXECUTOR,
        "backward": _EXECUTOR,
    },
}
"""The suggestions by class and name."""


def member_error(owner: Any, name: str) -> AttributeError:
    """The error of a member that `owner` has not: Python adds near names to it where it prints it.

    Args:
        owner: an object of a class of `_MEMBERS`.
        name: what was asked for.
    """
    remedy = _MEMBERS.get(type(owner).__name__, {}).get(name)
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{message}: {remedy}" if remedy else message, name=name, obj=owner)
