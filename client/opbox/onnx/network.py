"""ExportNetwork: a symbol with its parameters, every shape and type in it, and which dimensions may vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..inference import infer_shape
from ..symbol import Symbol
from ..symbol.node import Entry, Node
from .exporting import Dims

__all__ = ["ExportNetwork", "labels_of"]

WITH_LABELS = (
    "SoftmaxOutput",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
    "SVMOutput",
)
"""Operators whose second input is a label, which inference does not read."""

Shapes = dict[tuple[int, int], Dims]


class ExportNetwork:
    """A network to be exported, with all that is known before its nodes are converted.

    Attributes:
        nodes: in the graph's order.
        heads: its outputs.
        params: the parameters that it reads, by name.
        labels: the names of its labels.
        input_shapes: the shapes of its inputs; None where a dimension may vary.
        zero_states: the nodes of zeros that only recurrent layers read, as the states that they begin with: ONNX's
            layers begin so by themselves, whatever the batch.
    """

    def __init__(
        self,
        symbol: Symbol,
        params: Mapping[str, np.ndarray[Any, Any]],
        in_shapes: Sequence[Sequence[int]] | None,
        in_types: Any,
        dynamic: bool,
        dynamic_shapes: Sequence[Sequence[int | None]] | None,
    ) -> None:
        self._symbol = symbol.get_internals()
        self.nodes: list[Node] = symbol._nodes()
        self.heads: list[Entry] = symbol._heads
        names = symbol.list_inputs()
        self.params = {name: params[name] for name in names if name in params}
        self.labels = labels_of(symbol, self.params)
        self.zero_states = _zero_states(symbol)
        inputs = [name for name in names if name not in self.params and name not in self.labels]
        states = sorted(set(inputs) & set(symbol.list_auxiliary_states()))
        if states:
            raise ValueError(f"export_model: params: expected the states too, got none of {_all(states)}")
        shapes = self._sizes = _input_shapes(inputs, in_shapes)
        self._types = _input_types(inputs, in_types)
        self._shapes = self._inferred(shapes)
        self._dtypes = self._inferred_types()
        self.input_shapes: dict[str, Dims] = dict(shapes)
        if dynamic:
            self.input_shapes = self._freed(shapes, _free(inputs, shapes, dynamic_shapes))
        elif dynamic_shapes is not None:
            raise ValueError("export_model: dynamic_input_shapes: expected dynamic=True beside it, got dynamic=False")

    def shape(self, node: Node, index: int) -> Dims:
        """The shape of a value; None where a dimension may vary."""
        return self._shapes[id(node), index]

    def dtype(self, node: Node, index: int) -> np.dtype[Any]:
        """The element type of a value."""
        return self._dtypes[id(node), index]

    def at_other_sizes(self) -> tuple[dict[str, tuple[int, ...]], Shapes] | None:
        """Shapes of the inputs whose free dimensions have all other sizes than in `in_shapes`, and of all values then.

        Returns:
            None if no dimension is free, or these sizes do not fit each other.
        """
        if not any(None in dims for dims in self.input_shapes.values()):
            return None
        sizes = {
            name: tuple(
                size * (axis + 2) if dims[axis] is None else size for axis, size in enumerate(self._sizes[name])
            )
            for name, dims in self.input_shapes.items()
        }
        try:
            return sizes, self._inferred(sizes)
        except (MXNetError, ValueError):
            return None

    def _inferred(self, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
        """All shapes, from those of the inputs and of the parameters.

        Raises:
            ValueError: some stay unknown.
            ShapeError: they contradict each other.
        """
        known = {**shapes, **{name: value.shape for name, value in self.params.items()}}
        _, outputs, _ = infer_shape(self._symbol, True, (), known)
        table: Shapes = {}
        for entry, shape in zip(self._symbol._heads, outputs or (), strict=True):
            if entry[0].op is None and entry[0].name in self.labels:
                continue
            if shape is None or not all(shape) or (shape == () and entry[0].name not in known):
                raise ValueError(
                    f"export_model: in_shapes: expected shapes from which all others follow, got {dict(shapes)}, which "
                    f"leaves {entry[0].output_name(entry[1])} unknown"
                )
            table[id(entry[0]), entry[1]] = tuple(int(size) for size in shape)
        return table

    def _inferred_types(self) -> dict[tuple[int, int], np.dtype[Any]]:
        known = {**self._types, **{name: value.dtype for name, value in self.params.items()}}
        _, outputs, _ = self._symbol.infer_type_partial(**known)
        return {
            (id(node), index): np.dtype(np.float32 if dtype is None else dtype)
            for (node, index), dtype in zip(self._symbol._heads, outputs or (), strict=True)
        }

    def _freed(self, shapes: Mapping[str, tuple[int, ...]], free: Mapping[str, frozenset[int]]) -> dict[str, Dims]:
        """Let dimensions vary, axis by axis, as far as the parameters allow: what twice the size changes is dynamic."""
        freed: dict[str, frozenset[int]] = {name: frozenset() for name in shapes}
        fixed = self._shapes
        for axis in sorted(set().union(*free.values())):
            trial = {name: freed[name] | ({axis} & free[name]) for name in shapes}
            sizes = {
                name: tuple(size * 2 if i in trial[name] else size for i, size in enumerate(shape))
                for name, shape in shapes.items()
            }
            try:
                doubled = self._inferred(sizes)
            except (MXNetError, ValueError):
                continue  # the parameters need this axis as it is
            if any(len(shape) != len(doubled[key]) for key, shape in fixed.items()):
                continue  # a size of 1 that is squeezed away
            freed = trial
            self._shapes = {
                key: tuple(a if a == b else None for a, b in zip(shape, doubled[key], strict=True))
                for key, shape in fixed.items()
            }
        return {
            name: tuple(None if i in freed[name] else size for i, size in enumerate(shape))
            for name, shape in shapes.items()
        }


def _all(names: Sequence[str]) -> str:
    return ", ".join(names)


def _zero_states(symbol: Symbol) -> frozenset[int]:
    """The ids of the nodes of zeros that are nothing but first states of recurrent layers."""
    zeros, others = set[int](), {id(node) for node, _ in symbol._heads}
    for node in symbol._nodes():
        for i, (source, _) in enumerate(node.inputs):
            is_state = node.op is not None and node.op.name == "RNN" and i in (2, 3)
            if is_state and source.op is not None and source.op.name == "_zeros":
                zeros.add(id(source))
            else:
                others.add(id(source))
    return frozenset(zeros - others)


def labels_of(symbol: Symbol, params: Mapping[str, Any]) -> frozenset[str]:
    """The variables that nothing reads but losses, as their labels."""
    labels: set[str] = set()
    others: set[str] = set()
    for node in symbol._nodes():
        for i, (source, _) in enumerate(node.inputs):
            if source.op is None:
                is_label = node.op is not None and node.op.name in WITH_LABELS and i == 1
                (labels if is_label else others).add(source.name)
    return frozenset(name for name in labels - others if name not in params)


def _input_shapes(inputs: Sequence[str], in_shapes: Any) -> dict[str, tuple[int, ...]]:
    if isinstance(in_shapes, str) or not isinstance(in_shapes, Sequence) or len(in_shapes) != len(inputs):
        number = f"{len(in_shapes)}" if isinstance(in_shapes, Sequence) else repr(in_shapes)
        raise ValueError(
            f"export_model: in_shapes: expected {len(inputs)}, one for each argument that params lacks "
            f"({_all(inputs) or 'none'}), got {number}"
        )
    shapes = {}
    for name, shape in zip(inputs, in_shapes, strict=True):
        whole = isinstance(shape, Sequence) and all(isinstance(d, int | np.integer) and d > 0 for d in shape)
        if not whole or not shape:
            raise ValueError(f"export_model: in_shapes: {name}: expected a tuple of numbers above 0, got {shape!r}")
        shapes[name] = tuple(int(d) for d in shape)
    return shapes


def _input_types(inputs: Sequence[str], in_types: Any) -> dict[str, np.dtype[Any]]:
    types = list(in_types) if isinstance(in_types, list | tuple) else [in_types] * len(inputs)
    if len(types) != len(inputs):
        raise ValueError(f"export_model: in_types: expected {len(inputs)} ({_all(inputs)}), got {len(types)}")
    try:
        return {name: np.dtype(dtype) for name, dtype in zip(inputs, types, strict=True)}
    except TypeError:
        raise ValueError(f"export_model: in_types: expected NumPy types such as np.float32, got {in_types!r}") from None


def _free(
    inputs: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    dynamic_shapes: Sequence[Sequence[int | None]] | None,
) -> dict[str, frozenset[int]]:
    """The axes of each input that are to vary."""
    if dynamic_shapes is None:
        return {name: frozenset(range(len(shape))) for name, shape in shapes.items()}
    if len(dynamic_shapes) != len(inputs):
        raise ValueError(
            f"export_model: dynamic_input_shapes: expected {len(inputs)} ({_all(inputs)}), got {len(dynamic_shapes)}"
        )
    free = {}
    for name, wanted in zip(inputs, dynamic_shapes, strict=True):
        shape = shapes[name]
        fits = len(wanted) == len(shape)
        if not fits or any(w is not None and w != size for w, size in zip(wanted, shape, strict=True)):
            raise ValueError(
                f"export_model: dynamic_input_shapes: {name}: expected {shape} with None where it may vary, "
                f"got {tuple(wanted)}"
            )
        free[name] = frozenset(i for i, size in enumerate(wanted) if size is None)
    return free
