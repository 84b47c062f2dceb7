"""The executors of a module: one for each set of input shapes, over the same parameters, gradients and states.

Inputs (data, labels, states) belong to an executor; everything else is made once and shared, so that a batch of another
size costs a bind, not a copy, and going back costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cachetools import LRUCache

from opbox_protocol.errors import MXNetError

from .. import ndarray as nd
from ..binding import bind
from ..inference import infer_for_bind
from ..io import DataDesc
from ..ndarray import NDArray
from ..operator.sending import graph_for
from ..placement import Placement

__all__ = ["Executors", "WriteCount"]


class WriteCount:
    """Number of writes to the parameters; modules that share the arrays share the count."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


MAX_BOUND = 8
"""Number of executors to keep for other shapes; the least recently used is dropped first."""


class Executors:
    """A symbol bound on one device.

    Args:
        symbol, context: what, and where.
        input_names: arguments that are fed, not learned.
        grad_req: "write", "add" or "null" for each argument.
        group2ctx: contexts by the symbol's groups (see `Placement`).
        shared: the executors of another module, whose parameters, gradients and auxiliary states take the place of
            new ones of the same name.

    Attributes:
        args, grads, aux: parameters, their gradients and auxiliary states by name.
        writes: counts what writes to parameters and states.
    """

    def __init__(
        self,
        symbol: Any,
        context: Any,
        input_names: Sequence[str],
        grad_req: Mapping[str, str],
        shared: Executors | None = None,
        group2ctx: Any = None,
    ) -> None:
        self.symbol = symbol
        self.context = context
        self.grad_req = dict(grad_req)
        self._group2ctx = group2ctx
        self._placement = Placement(symbol, context, group2ctx)
        self._arguments = symbol.list_arguments()
        self._states = symbol.list_auxiliary_states()
        self._inputs = frozenset(input_names)
        self.args: dict[str, NDArray] = _of_names(shared.args, self._arguments) if shared else {}
        self.grads: dict[str, NDArray] = _of_names(shared.grads, self._arguments) if shared else {}
        self.aux: dict[str, NDArray] = _of_names(shared.aux, self._states) if shared else {}
        self.writes: WriteCount = shared.writes if shared else WriteCount()
        self._bound: LRUCache[Any, Any] = LRUCache(MAX_BOUND)
        self.current: Any = None

    def select(self, shapes: Sequence[DataDesc]) -> Any:
        """The executor for these input shapes, bound now if it was not.

        Raises:
            MXNetError: parameters whose shape would have to change, or shapes that leave some argument's unknown.
        """
        key = tuple((desc.name, tuple(desc.shape), np.dtype(desc.dtype).name) for desc in shapes)
        if key not in self._bound:
            self._bound[key] = self._bind(shapes)
        self.current = self._bound[key]
        return self.current

    def __len__(self) -> int:
        return len(self._bound)

    def all(self) -> list[Any]:
        """All bound executors."""
        return list(self._bound.values())

    def _bind(self, shapes: Sequence[DataDesc]) -> Any:
        known_shapes = {desc.name: tuple(desc.shape) for desc in shapes if desc.name in self._arguments}
        known_types = {desc.name: np.dtype(desc.dtype).name for desc in shapes if desc.name in self._arguments}
        session = self.context.session
        document = graph_for(session, self.symbol)
        (arg_shapes, out_shapes, aux_shapes), (arg_types, _, aux_types) = infer_for_bind(
            self.symbol,
            document,
            session,
            known_shapes,
            known_types,
            partial_types=False,
            subject="bind",
            remedy="give the inputs among them in data_shapes or label_shapes",
        )
        args, grads = {}, {}
        for name, shape, dtype in zip(self._arguments, arg_shapes, arg_types, strict=True):
            wanted = self.grad_req.get(name, "null") != "null"
            if name in self._inputs:
                args[name] = self._zeros(name, shape, dtype)
                if wanted:
                    grads[name] = self._zeros(name, shape, dtype)
                continue
            args[name] = self._shared(self.args, name, shape, dtype)
            if wanted:
                grads[name] = self._shared(self.grads, name, shape, dtype)
        aux = {
            name: self._shared(self.aux, name, shape, dtype)
            for name, shape, dtype in zip(self._states, aux_shapes, aux_types, strict=True)
        }
        grad_req = {name: self.grad_req.get(name, "null") for name in self._arguments}
        executor = bind(self.symbol, self.context, args, grads, grad_req, aux, document, self._group2ctx)
        for out, shape in zip(executor.outputs, out_shapes, strict=True):
            out._shape = tuple(shape)  # known here already: asking the engine for it would wait
        return executor

    def _zeros(self, name: str, shape: Sequence[int], dtype: Any) -> NDArray:
        array = nd.zeros(tuple(shape), self.context, dtype=dtype)
        self._placement.put([name], [array])
        return array

    def _shared(self, arrays: dict[str, NDArray], name: str, shape: Sequence[int], dtype: Any) -> NDArray:
        if name not in arrays:
            arrays[name] = self._zeros(name, shape, dtype)
        elif arrays[name].shape != tuple(shape):
            raise MXNetError(
                f"{name}: expected shape {arrays[name].shape} as it was bound first, got {tuple(shape)} by the new "
                "input shapes; bind a module of its own for inputs that change the parameters' shapes"
            )
        return arrays[name]


def _of_names(arrays: Mapping[str, NDArray], names: Sequence[str]) -> dict[str, NDArray]:
    """The arrays of these names, in the order of `names`."""
    return {name: arrays[name] for name in names if name in arrays}
