"""NumpyOp and NDArrayOp: operators of MXNet 0.9's form, instances that are called on symbols.

class Tile(mx.operator.NumpyOp):
    def __init__(self, tiles, axis):
        super().__init__(True)
        self.tiles, self.axis = tiles, axis

    def forward(self, in_data, out_data):
        out_data[0][:] = ...

tiled = Tile(tiles=10, axis=2)(data=x, name="tiled")

The symbol notes what the instance was made with (constructor arguments, and attributes of plain values that were set
since); the engine makes an instance of its own of that for each executor. Nothing is pickled.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from .custom import check_signature
from .values import MOST_ELEMENTS, literal

__all__ = ["NDArrayOp", "NumpyOp", "PythonOp", "check_class", "made_with", "rebuilt"]

_ARRAY = "numpy.ndarray"
NAMED: Mapping[str, tuple[str, ...]] = {
    "forward": ("in_data", "out_data"),
    "backward": ("out_grad", "in_data", "out_data", "in_grad"),
}


class PythonOp:
    """Base of NumpyOp and NDArrayOp.

    Args:
        need_top_grad: whether backward reads the gradient of the outputs (a loss does not).
    """

    kind = ""
    """The operator's name in symbol JSON."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls)
        made._made_with = (args, kwargs)
        return made

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A symbol that runs this operator; see `get_symbol`."""
        return self.get_symbol(*args, **kwargs)

    def get_symbol(self, *args: Any, **kwargs: Any) -> Any:
        """A symbol that runs this operator on symbols, given by position or by the names of list_arguments.

        Args:
            name: the node's name.

        Raises:
            SourceError: the instance was made with values that cannot be written down.
        """
        from .compose import native_symbol

        return native_symbol(self, args, kwargs)

    def forward(self, in_data: Any, out_data: Any) -> None:
        """Compute the outputs, in place: `out_data[0][:] = …`."""
        out_data[0][:] = in_data[0]

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        """Compute the gradients of the inputs, in place: `in_grad[0][:] = …`."""
        in_grad[0][:] = 1.0

    def infer_shape(self, in_shape: list[Any]) -> Any:
        """Shapes of (inputs, outputs) from those of the inputs."""
        return in_shape, [in_shape[0]]

    def list_arguments(self) -> list[str]:
        """Names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def need_top_grad(self) -> bool:
        """Whether backward reads the gradient of the outputs."""
        return self.need_top_grad_


class NumpyOp(PythonOp):
    """An operator on numpy arrays: views of the engine's memory on a CPU, copies there and back on a GPU."""

    kind = "_NumpyOp"


class NDArrayOp(PythonOp):
    """An operator on NDArrays, which stay on the device."""

    kind = "_NDArrayOp"

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Which of these backward reads; the rest need not be kept."""
        deps = list(out_grad) if self.need_top_grad() else []
        return deps + list(in_data) + list(out_data)


def check_class(cls: type, subject: str) -> None:
    """MXNetError unless forward and backward take what they will be given."""
    for method in NAMED:
        check_signature(cls, method, subject, NAMED)


def made_with(instance: PythonOp) -> dict[str, str]:
    """What an instance can be made of again, as text: args, kwargs, and attributes set since.

    Raises:
        MXNetError: a constructor argument is no plain value.
    """
    args, kwargs = instance._made_with
    told = {
        "args": _text(instance, "constructor arguments", list(args)),
        "kwargs": _text(instance, "constructor arguments", dict(kwargs)),
    }
    state = {}
    for name, value in vars(instance).items():
        text = literal(_plain(value))
        if name != "_made_with" and text is not None and _readable(text):
            state[name] = _plain(value)
    told["state"] = _text(instance, "attributes", state)
    return told


def _text(instance: PythonOp, what: str, values: Any) -> str:
    text = literal(_plain(values))
    if text is None or not _readable(text):
        raise MXNetError(
            f"{type(instance).__name__}: {what}: expected plain values (numbers, strings, small numpy arrays, tuples, "
            f"lists, dicts), which the engine can make an instance of its own with, got {values!r}"
        )
    return text


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's and its arrays as dicts, inside containers too."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.size <= MOST_ELEMENTS:
        return {_ARRAY: value.dtype.name, "shape": value.shape, "values": value.ravel().tolist()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    if type(value) is dict:
        return {_plain(key): _plain(each) for key, each in value.items()}
    return value


def _made(value: Any) -> Any:
    """What `_plain` was given; MXNetError when it is no array's."""
    if type(value) is dict and _ARRAY in value:
        try:
            return np.array(value["values"], np.dtype(value[_ARRAY])).reshape(value["shape"])
        except (KeyError, TypeError, ValueError):
            raise MXNetError(f"expected an array's type, shape and values, got {value!r}") from None
    if type(value) in (list, tuple):
        return type(value)(_made(each) for each in value)
    if type(value) is dict:
        return {key: _made(each) for key, each in value.items()}
    return value


def _readable(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except ValueError:
        return False
    return True


def rebuilt(cls: type[PythonOp], told: Mapping[str, str]) -> PythonOp:
    """An instance of `cls` from what `made_with` wrote.

    Raises:
        MXNetError: the text is none of `made_with`.
    """
    read: list[Any] = []
    for key, kind in (("args", list), ("kwargs", dict), ("state", dict)):
        try:
            value = ast.literal_eval(told.get(key, "[]" if kind is list else "{}"))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
        if type(value) is not kind:
            raise MXNetError(f"{cls.__name__}: {key}: expected a {kind.__name__} of plain values, got {told[key]!r}")
        read.append(value)
    args, kwargs, state = _made(read)
    made = cls(*args, **kwargs)
    for name, value in state.items():
        setattr(made, name, value)
    return made
