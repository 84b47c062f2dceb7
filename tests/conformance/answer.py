"""MXNet's process: answers requests on standard input until it is closed. Run by MXNet's Python.

    python -m tests.conformance.answer

Each request is a frame whose header says what to `do`; the answer's header has `refused` when MXNet would not, and
`died` when it ended its process over it.
"""

from __future__ import annotations

import os
import signal
from typing import Any, BinaryIO

from .frames import receive, send
from .oracle import REFUSALS, call, first_line, lists_of, mx, run, shapes_of, time_call, types_of
from .training import losses

Answer = tuple[dict[str, Any], dict[str, Any]]


def _symbol(asked: dict[str, Any]) -> Any:
    """The graph asked about: JSON, one operator call, or a network of examples/networks."""
    if "json" in asked:
        return mx.sym.load_json(asked["json"])
    if "network" in asked:
        from importlib import import_module

        package = asked.get("package", "examples.networks")
        build = getattr(import_module(f"{package}.{asked['network']}"), asked.get("builder", "build"))
        return build(mx, **asked.get("options", {}))
    return call(asked["op"], asked["attrs"], [mx.sym.Variable(name) for name in asked["names"]])


def _run(asked: dict[str, Any], arrays: dict[str, Any]) -> Answer:
    values = {name[4:]: array for name, array in arrays.items() if name.startswith("arg:")}
    heads = {int(name[5:]): array for name, array in arrays.items() if name.startswith("head:")}
    with mx.util.np_shape(asked.get("np_shape", False)):
        entry = run(
            _symbol(asked),
            values,
            asked["wanted"],
            (lambda i, out: heads[i].reshape(out.shape).astype(out.dtype)) if heads else None,
            is_train=asked["is_train"],
            start=asked.get("start"),
        )
    named = {f"out:{i}": array for i, array in enumerate(entry.outputs)}
    named.update({f"grad:{name}": array for name, array in entry.grads.items()})
    named.update({f"aux:{name}": array for name, array in entry.aux.items()})
    named.update({f"after:{name}": array for name, array in entry.after.items()})
    return {}, named


def _time(asked: dict[str, Any], arrays: dict[str, Any]) -> Answer:
    """Seconds of a call, forward and backward, in the best of the repetitions."""
    values = {name[4:]: array for name, array in arrays.items() if name.startswith("arg:")}
    heads = [array for name, array in arrays.items() if name.startswith("head:")]
    return {"seconds": time_call(_symbol(asked), values, asked["wanted"], heads, asked["seconds"])}, {}


def _shapes(asked: dict[str, Any], arrays: dict[str, Any]) -> Answer:
    with mx.util.np_shape(asked.get("np_shape", False)):
        return shapes_of(_symbol(asked), asked["shapes"], partial=asked["partial"]), {}


def _types(asked: dict[str, Any], arrays: dict[str, Any]) -> Answer:
    return types_of(_symbol(asked), asked["types"], partial=asked["partial"]), {}


def _lists(asked: dict[str, Any], arrays: dict[str, Any]) -> Answer:
    return lists_of(_symbol(asked)), {}


def _train(asked: dict[str, Any], arrays: dict[str, Any]) -> Answer:
    """The loss of each step of a training, as `training.losses` has it."""
    values = {name[4:]: array for name, array in arrays.items() if name.startswith("arg:")}
    return {}, {"losses": losses(mx, asked["json"], values, arrays["data"], arrays["labels"])}


def _arguments(asked: dict[str, Any], arrays: dict[str, Any]) -> Answer:
    """Names and declared types of an operator's arguments, from MXNet's registry."""
    import ctypes

    from mxnet.base import _LIB, check_call

    handle, name, description, key_var, returns = (ctypes.c_void_p(), *(ctypes.c_char_p() for _ in range(4)))
    count = ctypes.c_uint()
    names, types, descriptions = (ctypes.POINTER(ctypes.c_char_p)() for _ in range(3))
    check_call(_LIB.NNGetOpHandle(asked["op"].encode(), ctypes.byref(handle)))
    where = [ctypes.byref(slot) for slot in (name, description, count, names, types, descriptions, key_var, returns)]
    check_call(_LIB.MXSymbolGetAtomicSymbolInfo(handle, *where))
    return {"arguments": {names[i].decode(): types[i].decode() for i in range(count.value)}}, {}


PATIENCE = 60
"""Seconds that an answer may take before MXNet's process is ended."""

DO = {
    "run": _run,
    "time": _time,
    "shapes": _shapes,
    "types": _types,
    "lists": _lists,
    "train": _train,
    "arguments": _arguments,
}


def serve(out: BinaryIO) -> None:
    """Answer until standard input ends."""
    requests = os.fdopen(os.dup(0), "rb")
    while True:
        try:
            asked, arrays = receive(requests)
        except EOFError:
            return
        # Some bad input makes MXNet run on for ever, or ask for all memory.
        signal.alarm(PATIENCE)
        try:
            header, out_arrays = DO[asked["do"]](asked, arrays)
        except REFUSALS as error:
            header, out_arrays = {"refused": first_line(error)}, {}
        signal.alarm(0)
        send(out, header, out_arrays)


def main() -> None:
    """Serve from a forked process, and from another one when MXNet has ended it: MXNet is loaded once."""
    # What MXNet prints must not come between the frames.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        child = os.fork()
        if child == 0:
            serve(out)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        send(out, {"died": code}, {})


if __name__ == "__main__":
    main()
