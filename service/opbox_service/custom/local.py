"""What `mx.nd` means inside an operator: the engine's own arrays, and operators that run at once.

A LocalSession takes a client session's place: the same NDArray, the same generated functions, but `record` executes
the command on the arrays themselves. Nothing is copied: wrapping an array makes a handle on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from opbox.context import Context
from opbox.inside import Inside
from opbox.ndarray import NDArray
from opbox_ops import registry
from opbox_ops.backend import Backend, RandomSource, backend_for
from opbox_ops.compute import Array
from opbox_ops.rtc import KernelForm, read_kernel
from opbox_protocol.datatypes import datatype_of
from opbox_protocol.errors import MXNetError, error_from_json, error_to_json

from ..executor.invoke import invoke
from .telling import READ_ONLY, WRITES_TO_INPUT

__all__ = ["LocalSession"]

Do: TypeAlias = "Callable[[LocalSession, Mapping[str, Any], Any], None]"


class _Ready:
    """A value that has come (see opbox.pending.Pending)."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._value


class LocalSession:
    """Arrays of one device of this process.

    Args:
        backend, random: the device.
        device: its name, "cpu" or "gpu:0".
        define: takes the class of an operator that another one calls.
    """

    in_process = True
    requests = 0

    def __init__(self, backend: Backend, random: RandomSource, device: str, define: Callable[..., object]) -> None:
        self.device = device
        self._define_class = define
        self._backend = backend
        self._random = random
        self._arrays: dict[int, Array] = {}
        self._inputs: set[int] = set()
        self._kernels: dict[int, KernelForm] = {}
        self._others: dict[str, LocalSession] = {device: self}
        self.new_id = itertools.count(1).__next__
        kind, _, number = device.partition(":")
        self.context = Context(kind, int(number or 0))

    def __repr__(self) -> str:
        return f"<LocalSession on {self.device}>"

    def inside(self) -> Inside:
        """A block in which new arrays are made here."""
        return Inside(self, self.context)

    def on(self, device: str) -> LocalSession:
        """The local session on another device."""
        if device == "gpu:0" and self.device == "gpu":
            return self
        if device not in self._others:
            other = backend_for(device)
            self._others[device] = made = LocalSession(other, other.random(0), device, self._define_class)
            made._others = self._others
        return self._others[device]

    def wrap(self, array: Array, *, read_only: bool = False) -> NDArray:
        """A handle on an array; writing to a `read_only` one is refused."""
        id = self.new_id()
        if read_only:
            self._inputs.add(id)
            if isinstance(array, np.ndarray):
                array = array.view()
                array.flags.writeable = False
        self._arrays[id] = array
        return NDArray(self, id, tuple(array.shape), array.dtype)  # type: ignore[arg-type]

    def missing(self, what: str) -> NDArray:
        """A handle that says `what` when it is used."""
        return _Missing(self, what)

    def array(self, id: int) -> Array:
        """The array behind a handle."""
        return self._arrays[id]

    # -- a client session's methods -----------------------------------------------------------------------------

    def record(self, command: Mapping[str, Any], tensor: Any = None) -> None:
        """Run a command."""
        do = _DO.get(command["do"])
        if do is None:
            raise MXNetError(
                f"{command['do']}: inside an operator, expected mx.nd's operators one by one; bind graphs outside"
            )
        try:
            do(self, command, tensor)
        except MXNetError as error:
            if any(each in error.message for each in READ_ONLY):
                raise MXNetError(WRITES_TO_INPUT) from None
            # Anew: the traceback that the user reads begins at his own call.
            raise error_from_json(*error_to_json(error)) from error

    def fetch(self, id: int) -> _Ready:
        array = self._backend.get(self._arrays[id])
        return _Ready(array.copy() if isinstance(self._arrays[id], np.ndarray) else array)

    def describe(self, id: int, command: str = "describe") -> dict[str, Any]:
        array = self._arrays[id]
        return {"shape": list(array.shape), "datatype": datatype_of(array.dtype), "device": self.device}

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        raise MXNetError(f"{command['do']}: inside an operator, expected mx.nd's operators; ask about graphs outside")

    def free(self, id: int) -> None:
        self._arrays.pop(id, None)
        self._kernels.pop(id, None)
        self._inputs.discard(id)

    def flush(self) -> None:
        """Nothing waits."""

    def wait(self) -> None:
        self._backend.synchronize()

    def raise_pending(self) -> None:
        """Errors are raised where they happen."""

    # -- commands -----------------------------------------------------------------------------------------------

    def _target(self, id: int) -> Array:
        if id in self._inputs:
            raise MXNetError(WRITES_TO_INPUT)
        return self._arrays[id]

    def _put(self, command: Mapping[str, Any], tensor: Any) -> None:
        self._arrays[command["id"]] = tensor if self._backend.device_type == "cpu" else self._backend.put(tensor)

    def _write(self, command: Mapping[str, Any], tensor: Any) -> None:
        self._backend.write(self._target(command["id"]), tensor)

    def _copy(self, command: Mapping[str, Any], tensor: Any) -> None:
        source = self._arrays[command["from"]]
        if command["to"] in self._arrays:
            self._target(command["to"])[...] = source
        else:
            self._arrays[command["to"]] = source.copy()

    def _invoke(self, command: Mapping[str, Any], tensor: Any) -> None:
        op = registry.get(command["op"])
        inputs = [self._arrays[id] for id in command["inputs"]]
        into = [self._target(id) for id in command["outputs"]] if command.get("into") else None
        made = self._call(op, command["attrs"], inputs, into, bool(command.get("is_train")))
        if into is None:
            self._arrays.update(zip(command["outputs"], made, strict=True))

    def _update(self, command: Mapping[str, Any], tensor: Any) -> None:
        op = registry.get(command["op"])
        for call in command["calls"]:
            inputs = [self._arrays[id] for id in call["inputs"]]
            self._call(op, {**command["attrs"], **call["attrs"]}, inputs, [self._target(call["inputs"][0])], True)

    def _call(
        self, op: registry.Op, attrs: Any, inputs: Sequence[Array], into: Sequence[Array] | None, is_train: bool
    ) -> list[Array]:
        return invoke(op, attrs, inputs, backend=self._backend, random=self._random, is_train=is_train, outputs=into)

    def _view(self, command: Mapping[str, Any], tensor: Any) -> None:
        array = self._arrays[command["of"]]
        if "shape" in command:
            made = array.reshape(command["shape"])
        elif "at" in command:
            made = array[command["at"], ...]
        else:
            made = array[command["begin"] : command["end"]]
        if command["of"] in self._inputs:
            self._inputs.add(command["id"])
        self._arrays[command["id"]] = made

    def _free(self, command: Mapping[str, Any], tensor: Any) -> None:
        for id in command["ids"]:
            self.free(id)

    def _compile(self, command: Mapping[str, Any], tensor: Any) -> None:
        self._kernels[command["id"]] = read_kernel(self._backend.device_type, command, self.array)

    def _launch(self, command: Mapping[str, Any], tensor: Any) -> None:
        given = command["args"]
        values = [self._arrays[each["array"]] if "array" in each else each["value"] for each in given]
        kernel = self._kernels[command["kernel"]].for_values(values)
        for argument, each in zip(kernel.arguments, given, strict=False):
            if not argument.is_const and each.get("array") in self._inputs:
                raise MXNetError(WRITES_TO_INPUT)
        kernel.launch(values, command["grid"], command["block"], command.get("shared", 0))

    def _define(self, command: Mapping[str, Any], tensor: Any) -> None:
        self._define_class(command["op"], command["op_type"], command["sha256"], live=command["live"])

    def _seed(self, command: Mapping[str, Any], tensor: Any) -> None:
        self._random.seed(command["seed"])


class _Missing(NDArray):
    """An array that an operator is not given: any use of it says why."""

    __slots__ = ("_what",)

    def __init__(self, session: LocalSession, what: str) -> None:
        super().__init__(session, 0)  # type: ignore[arg-type]
        self._what = what

    def _describe(self) -> None:
        raise MXNetError(self._what)

    def _fetch_async(self) -> Any:
        raise MXNetError(self._what)

    @property
    def _id(self) -> int:
        raise MXNetError(self._what)

    @_id.setter
    def _id(self, value: int) -> None:
        """There is no array to have a number."""

    def __del__(self) -> None:
        """There is nothing to free."""

    def __repr__(self) -> str:
        return f"<NDArray that is not there: {self._what}>"


_DO: dict[str, Do] = {
    "put": LocalSession._put,
    "write": LocalSession._write,
    "copy": LocalSession._copy,
    "invoke": LocalSession._invoke,
    "update": LocalSession._update,
    "view": LocalSession._view,
    "free": LocalSession._free,
    "seed": LocalSession._seed,
    "define": LocalSession._define,
    "compile": LocalSession._compile,
    "launch": LocalSession._launch,
}
