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

from typing import Any

from ..symbol.custom import symbol_of_instance
from . import code_detection

__all__ = ["NDArrayOp", "NumpyOp", "PythonOp"]


class PythonOp:
    """Base of NumpyOp and NDArrayOp.

    Args:
        need_top_grad: whether backward reads the gradient of the outputs (a loss does not).
    """

    kind = ""
    """The operator's name in symbol JSON."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    """The constructor's arguments."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ != __name__:
            code_detection.operator_was_defined()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        instance = super().__new__(cls)
        instance._arguments = (args, kwargs)
        return instance

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
        return symbol_of_instance(self, args, kwargs)

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
        """Return whether backward reads the gradient of the outputs."""
        return self.need_top_grad_


class NumpyOp(PythonOp):
    """An operator on numpy arrays: views of the engine's memory on a CPU, copies there and back on a GPU."""

    kind = "_NumpyOp"


class NDArrayOp(PythonOp):
    """An operator on NDArrays, which stay on the device."""

    kind = "_NDArrayOp"

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Choose which of these arrays backward reads; the rest need not be kept."""
        deps = list(out_grad) if self.need_top_grad() else []
        return deps + list(in_data) + list(out_data)
