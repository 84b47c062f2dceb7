"""Writes what MXNet 1.9.1 says of its functions: the arguments in order. Run by MXNet's Python:

python tests/client/record_signatures.py tests/client/recorded/signatures.json
"""

from __future__ import annotations

import ctypes
import inspect
import json
import sys
from typing import Any

PREFIXES = {"_contrib_": "contrib", "_linalg_": "linalg", "_image_": "image", "_sparse_": "sparse"}


def names(mx: Any) -> list[str]:
    """Every operator's name that is for users of mx.nd and mx.sym, and those of mx.np that files have."""
    count, listed = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    mx.base.check_call(mx.base._LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(listed)))
    registered = sorted(listed[i].decode() for i in range(count.value))
    hidden = ("_backward", "_contrib_backward", "_npi_backward", "_sg_")
    return [name for name in registered if not name.startswith(hidden)]


def numpy_arguments(mx: Any, name: str) -> list[str]:
    """The arguments of an operator of mx.np, which mx.sym has no function for: arrays first."""
    handle, count = ctypes.c_void_p(), ctypes.c_uint()
    texts = [ctypes.c_char_p() for _ in range(3)]
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(name.encode(), ctypes.byref(handle)))
    true_name, doc, returned = map(ctypes.byref, texts)
    keys, kinds, docs = map(ctypes.byref, lists)
    mx.base.check_call(
        mx.base._LIB.NNGetOpInfo(handle, true_name, doc, ctypes.byref(count), keys, kinds, docs, returned)
    )
    arguments = [(lists[0][i].decode(), "NDArray" in lists[1][i].decode()) for i in range(count.value)]
    return [key for wanted in (True, False) for key, is_array in arguments if is_array == wanted]


def function(mx: Any, name: str) -> Any:
    """The function of mx.sym for an operator's name."""
    for prefix, module in PREFIXES.items():
        if name.startswith(prefix):
            return getattr(getattr(mx.sym, module), name[len(prefix) :], None)
    if name.startswith("_random_") and name.endswith("_like"):
        return getattr(mx.sym.random, name.removeprefix("_random_"), None)
    return getattr(mx.sym._internal if name.startswith("_") else mx.sym.op, name, None)


if __name__ == "__main__":
    import mxnet

    recorded = {}
    for operator in names(mxnet):
        if operator.startswith("_np"):
            recorded[operator] = numpy_arguments(mxnet, operator)
            continue
        implementation = function(mxnet, operator)
        if implementation is not None:
            recorded[operator] = [
                key for key in inspect.signature(implementation).parameters if key not in ("name", "attr", "out")
            ]
    lines = ",\n".join(f"{json.dumps(operator)}: {json.dumps(arguments)}" for operator, arguments in recorded.items())
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("{\n" + lines + "\n}\n")
