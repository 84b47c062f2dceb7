"""Compares a row's computes on a GPU with NumPy's reference: values, and the bits of a second run.

Each operator of a row (the forward one, and those of its gradient) gets the reference's own inputs, so that an error
shows at the compute that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from .. import registry, trust
from ..backend import Backend, RandomSource
from ..backend.failure import device_error, lost
from ..compute import LEVELS, ArraySpec, CallSpec, Kernel, Mode, OpContext, OpReq
from ..cuda.precision import allow_tf32
from ..infer import ShapeList, TypeList, known
from ..node import Entry, Node
from .row import Input, Row, draw

__all__ = ["Comparison", "difference"]

SEED = 7
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}
"""Largest error, relative to an output's largest number: rounding errors of a thousand terms, and no wrong index."""
TF32_TOLERANCE = 1e-2
"""For float32 where products may be rounded to TF32 (10 bits)."""
DRAWS_TOLERANCE = 6.0
"""Standard errors of the mean of random numbers."""
MAX_DEVIATION_RATIO = 1.3
"""Between the deviations of as many random numbers."""

Array = Any


class Comparison:
    """A call of a row, in one type.

    Args:
        row: what is called.
        attrs, inputs: the call's parameters and inputs.
        dtype: its element type.
        host, device: the backends of NumPy and of the GPU.
        running: called with the names of the computes that are about to run.

    Attributes:
        answers: by name of a compute: why it is wrong; empty where it is right.
    """

    def __init__(
        self,
        row: Row,
        attrs: dict[str, str],
        inputs: Sequence[Input],
        dtype: str,
        host: Backend,
        device: Backend,
        running: Callable[[Sequence[tuple[str, str]]], None],
    ) -> None:
        self.row, self.host, self.device, self._running = row, host, device, running
        self.answers: dict[tuple[str, str], str] = {}
        op = registry.get(row.op)
        params = op.parse(attrs)
        self._variables = [Node(None, name) for name in op.input_names(params)]
        self._node = Node(op, op.name, attrs, params, tuple(map(Entry, self._variables)))
        self._values = {
            Entry(variable): draw(spec, dtype, row.op, k)
            for k, (variable, spec) in enumerate(zip(self._variables, inputs, strict=True))
        }
        self._states: dict[tuple[Node, str], Any] = {}
        self._hidden: dict[Entry, Array] = {}
        """Outputs that only the gradient reads, as the GPU made them: a compute arranges them as it likes."""

    def run(self) -> None:
        """Compare the operator, then those of its gradient.

        Raises:
            MXNetError: the operator does not take the type.
        """
        self._compare(self._node, self._node.num_outputs)
        op = self._node.op
        rule = op.get_attr("FGradient") if op is not None else None
        if rule is None or not self.row.gradient:
            return
        heads = [Node(None, f"head{k}") for k in range(self._node.num_outputs)]
        for k, head in enumerate(heads):
            out = self._values[Entry(self._node, k)]
            self._values[Entry(head)] = draw(Input(out.shape), out.dtype.name, "head", k)
        entries = [entry for entry in rule(self._node, [Entry(head) for head in heads]) if entry is not None]
        counts: dict[Node, int] = {}
        self._count(entries, counts)
        for entry in entries:
            self._evaluate(entry, counts)

    def _count(self, entries: Sequence[Entry], counts: dict[Node, int]) -> None:
        """How many outputs each node of the gradient has: as many as it declares, or as are used."""
        for entry in entries:
            if entry in self._values:
                continue
            first = entry.node not in counts
            counts[entry.node] = max(counts.get(entry.node, entry.node.num_outputs), entry.index + 1)
            if first:
                self._count(entry.node.inputs, counts)

    def _evaluate(self, entry: Entry, counts: dict[Node, int]) -> None:
        if entry in self._values:
            return
        for source in entry.node.inputs:
            self._evaluate(source, counts)
        self._compare(entry.node, counts[entry.node])

    def _compare(self, node: Node, count: int) -> None:
        """Compute a node by the reference, keep its values, and compare what the GPU makes of the same inputs."""
        assert node.op is not None
        inputs = [self._values[entry] for entry in node.inputs]
        shapes, types = self._outputs_of(node, inputs, count)
        wanted, states = self._compute(node, inputs, shapes, types, self.host, LEVELS[0])
        self._values.update({Entry(node, k): array for k, array in enumerate(wanted)})
        names: list[tuple[str, str]] = []
        spec = _spec("gpu", inputs, shapes, types)
        try:
            with trust.choices(lambda name, dtype: names.append((name, dtype))):
                node.op.choose(node.params, spec)
        except Exception as error:
            self._note([(node.op.name, trust.element_type(spec))], f"could not be chosen ({_sentence(error)})")
            return
        # A forward operator of which the gradient has the state runs, whatever computes it.
        if names or node.op.get_attr("FCreateOpState") is not None:
            own = [self._hidden.get(entry, array) for entry, array in zip(node.inputs, inputs, strict=True)]
            self._note(names, self.judge(node, own, (*wanted, *states), names))

    def judge(
        self, node: Node, inputs: Sequence[Array], expected: Sequence[Array], names: Sequence[tuple[str, str]]
    ) -> str:
        """Run a node twice on the GPU: why its computes are wrong; empty where they are right.

        Args:
            node: what is called.
            inputs: host arrays; those that are another operator's hidden outputs, as the GPU made them.
            expected: the outputs, and the auxiliary states behind them.
            names: its computes, and their type.
        """
        assert node.op is not None
        outputs = expected[: len(expected) - len(self._states_of(node))]
        shapes, types = [one.shape for one in outputs], [one.dtype for one in outputs]
        self._running(names)
        try:
            results = [self._compute(node, inputs, shapes, types, self.device, None) for _ in range(2)]
        except Exception as error:
            failure = device_error(error)
            if lost() is not None:
                raise
            return f"failed ({_sentence(failure or error)})"
        first, second = ([*arrays, *changed] for arrays, changed in results)
        visible = len(outputs) if node.forward is not None else node.op.num_visible_outputs(node.params)
        hidden = range(visible, len(outputs))
        self._hidden |= {Entry(node, k): first[k] for k in hidden}
        for k, (want, got) in enumerate(zip(expected, first, strict=True)):
            if k in hidden:
                continue
            if reason := difference(want, got, self.row.compares, self.row.slack):
                return reason
        if any(one.tobytes() != other.tobytes() for one, other in zip(first, second, strict=True)):
            return "gives other bits in a second run"
        return ""

    @staticmethod
    def _states_of(node: Node) -> list[int]:
        """Positions of the auxiliary states among the inputs."""
        assert node.op is not None
        return list(node.op.aux_indices(node.params))

    def _note(self, names: Sequence[tuple[str, str]], reason: str) -> None:
        for name in names:
            self.answers[name] = self.answers.get(name) or reason

    def _outputs_of(
        self, node: Node, inputs: Sequence[Array], count: int
    ) -> tuple[list[tuple[int, ...]], list[np.dtype[Any]]]:
        """The outputs' shapes and types: by the operator's rules, or those of the forward inputs."""
        like = node.like[:count]
        if like:
            return [self._values[e].shape for e in like], [self._values[e].dtype for e in like]
        assert node.op is not None
        shapes, types = ShapeList([None] * count, "output"), TypeList([None] * count, "output")
        if node.op.shape_rule is not None:
            node.op.shape_rule(node.params, ShapeList([a.shape for a in inputs], "input"), shapes)
        node.op.type_rule(node.params, TypeList([a.dtype for a in inputs], "input"), types)
        if not all(map(known, shapes)) or any(dtype is None for dtype in types):
            raise MXNetError(f"{node.op.name}: expected a row that settles its outputs, got {[*shapes]} and {[*types]}")
        return [shape for shape in shapes if shape is not None], [dtype for dtype in types if dtype is not None]

    def _compute(
        self,
        node: Node,
        inputs: Sequence[Array],
        shapes: Sequence[tuple[int, ...]],
        types: Sequence[np.dtype[Any]],
        backend: Backend,
        level: str | None,
    ) -> tuple[list[Array], list[Array]]:
        """The outputs, and the auxiliary states as the operator leaves them, as host arrays of their own."""
        op, where = node.op, backend.device_type
        assert op is not None
        call = _spec(where, inputs, shapes, types)
        with backend.scope(), np.errstate(all="ignore"):
            kernel: Kernel = op.choose(node.params, call, level)
            arrays = [backend.put(array.copy()) for array in inputs]
            outputs = [_filled(backend, shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
            random: RandomSource = backend.random(SEED)
            context = OpContext(backend.xp, backend.special, random, backend, Mode(self.row.is_train))
            context.temp = tuple(_filled(backend, temp.shape, np.dtype(temp.dtype)) for temp in kernel.temps)
            context.call, context.req = call, (OpReq.WRITE,) * len(outputs)
            create = op.get_attr("FCreateOpState")
            if node.forward is not None:
                context.state = self._states.get((node.forward, where))
            elif create is not None:
                context.state = create(node.params, context, [a.shape for a in arrays], [a.dtype for a in arrays])
                self._states[node, where] = context.state
            kernel(node.params, context, arrays, outputs)
            backend.synchronize()
            states = [arrays[k] for k in self._states_of(node)]
            return [np.array(backend.get(one)) for one in outputs], [np.array(backend.get(one)) for one in states]


def _spec(
    device: str, inputs: Sequence[Array], shapes: Sequence[tuple[int, ...]], types: Sequence[np.dtype[Any]]
) -> CallSpec:
    ins = tuple([ArraySpec(tuple(array.shape), array.dtype) for array in inputs])
    return CallSpec(device, ins, tuple(map(ArraySpec, map(tuple, shapes), types)))


def _filled(backend: Backend, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array full of what no compute may leave there."""
    array = backend.empty(tuple(shape), dtype)
    array[...] = True if dtype.kind == "b" else 77 if dtype.kind in "iu" else np.nan
    return array


def _sentence(error: BaseException) -> str:
    text = error.message if isinstance(error, MXNetError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def difference(wanted: Array, got: Array, compares: str = "values", slack: float = 1.0) -> str:
    """In what an array differs from the one that is wanted by more than rounding errors; empty if in nothing.

    Args:
        wanted, got: of the same shape and type.
        compares, slack: see `Row`.

    Example:
        >>> difference(np.zeros(3, "f"), np.array([0, 1, 0], "f"))
        'differs from NumPy: expected 0.0 at (1,), got 1.0'
    """
    if wanted.dtype.kind in "biu" and compares == "values":
        wrong = wanted != got
        return _first(wanted, got, wrong) if wrong.any() else ""
    dtype = wanted.dtype.name
    tolerance = TF32_TOLERANCE if dtype == "float32" and allow_tf32() else TOLERANCE.get(dtype, 0.0)
    want, have = (np.asarray(array, np.float64) for array in (wanted, got))
    if compares == "draws":
        return _moments(want, have)
    if compares == "finite":
        return "" if np.isfinite(have).all() else "gives numbers that are not finite"
    if compares == "order":
        want, have = np.sort(want, axis=None), np.sort(have, axis=None)
    finite = np.isfinite(want)
    scale = np.abs(want[finite]).max(initial=0.0)
    with np.errstate(all="ignore"):
        near = np.abs(want - have) <= slack * tolerance * scale
    same = (want == have) | (np.isnan(want) & np.isnan(have))
    wrong = ~(same | (finite & near))
    return _first(want, have, wrong) if wrong.any() else ""


def _first(wanted: Array, got: Array, wrong: Array) -> str:
    place = tuple(int(k) for k in np.argwhere(wrong)[0])
    return f"differs from NumPy: expected {wanted[place]} at {place}, got {got[place]}"


def _moments(wanted: Array, got: Array) -> str:
    """Compare the mean and the deviation of random numbers, where there are enough."""
    if not np.isfinite(got).all():
        return "draws numbers that are not finite"
    if wanted.size < 1000:
        return ""
    error = np.hypot(wanted.std(), got.std()) / np.sqrt(wanted.size)
    if abs(wanted.mean() - got.mean()) > DRAWS_TOLERANCE * error:
        return f"draws numbers of another mean than NumPy: expected {wanted.mean():.4g}, got {got.mean():.4g}"
    low, high = sorted((wanted.std(), got.std()))
    if high > MAX_DEVIATION_RATIO * low:
        return f"draws numbers of another deviation than NumPy: expected {wanted.std():.4g}, got {got.std():.4g}"
    return ""
