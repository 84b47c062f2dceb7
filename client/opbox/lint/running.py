"""An operator bound for one case: values in, outputs and gradients out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError, UnsupportedError

from .. import ndarray, random
from ..inference import infer_shape
from ..operator import CustomOp
from ..symbol.node import ordered
from ..test_utils import default_context
from .cases import USUAL, Case, is_whole, values_of
from .subjects import Subject

__all__ = ["Bound", "Trial", "usual_case"]

SEED = 11


class Trial:
    """A subject, a case, and the values that all checks share.

    Args:
        subject, case: what is checked.

    Attributes:
        symbol: the operator on variables.
        arguments, states, outputs: names.
        shapes: of arguments, by name; `state_shapes`, `output_shapes` likewise.
        values: float64 values of the arguments.
        whole: the arguments whose element type is no float.
        has_backward: whether gradients can be asked for.

    Raises:
        MXNetError: the operator cannot be made, or its shapes not inferred.
    """

    def __init__(self, subject: Subject, case: Case) -> None:
        self.subject = subject
        self.case = case
        self.symbol = subject.build(case.params)
        for node in ordered(self.symbol._heads):
            node.source = subject.source
        self.arguments = self.symbol.list_arguments()
        self.states = self.symbol.list_auxiliary_states()
        self.outputs = self.symbol.list_outputs()
        unknown = [name for name in case.inputs if name not in (*self.arguments, *self._short_states())]
        if unknown:
            listed = ", ".join([*self.arguments, *self._short_states()])
            raise ValueError(f"lint_cases: {unknown[0]!r}: expected one of the inputs {listed}")
        self.shapes, self.output_shapes, self.state_shapes = self.infer(case.shapes())
        self._plain = self.types(np.float32)
        self.whole = [name for name, dtype in self._plain.items() if dtype.kind != "f"]
        self.values = values_of(case, self.arguments, list(self.shapes.values()), self.whole)
        self.has_backward = self._has_backward()

    def _short_states(self) -> list[str]:
        return [name.removeprefix("op_") for name in self.states]

    def infer(
        self, known_shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Shapes of arguments, outputs and states; ValueError when they stay unknown."""
        known = {name: shape for name, shape in known_shapes.items() if name in self.arguments}
        arguments, outputs, states = infer_shape(self.symbol, True, (), known)
        groups = []
        for names, shapes in ((self.arguments, arguments), (self.outputs, outputs), (self.states, states)):
            by_name = dict(zip(names, map(tuple, shapes or ()), strict=False))
            missing = [name for name in names if name not in by_name or (not by_name[name] and name not in known)]
            if missing:
                raise ValueError(f"infer_shape: {missing[0]}: expected its shape to follow from {known or 'nothing'}")
            groups.append(by_name)
        return groups[0], groups[1], groups[2]

    def state_values(self) -> dict[str, np.ndarray[Any, Any]]:
        """Zeros, or what the case says of a state."""
        values = {}
        for name, shape in self.state_shapes.items():
            declared = self.case.inputs.get(name.removeprefix("op_"))
            has_values = declared is not None and not isinstance(declared, tuple)
            values[name] = np.asarray(declared, np.float64) if has_values else np.zeros(shape)
        return values

    def differentiable(self) -> list[str]:
        """The arguments whose gradients are looked at."""
        return [name for name in self.arguments if not is_whole(name) and name not in self.whole]

    def types(self, dtype: Any) -> dict[str, np.dtype[Any]]:
        """The arguments' types: the case's, what the operator infers where the first is of `dtype`, or `dtype`."""
        fixed = {name: np.dtype(kind) for name, kind in self.case.types.items()}
        # An operator that has its own mind about the first (indices) is asked with another, or with none.
        for first in [[name] for name in self.arguments] + [[]]:
            asked = dict.fromkeys(first, np.dtype(dtype)) | fixed
            try:
                inferred = self.symbol.infer_type_partial(**asked)[0] or ()
            except MXNetError as error:
                reason = error
                continue
            by_name = dict(zip(self.arguments, inferred, strict=False))
            return {name: np.dtype(asked.get(name) or by_name.get(name) or dtype) for name in self.arguments}
        raise reason

    def output_types(self, types: Mapping[str, Any]) -> list[np.dtype[Any]]:
        """Element types of the outputs, from those of the arguments."""
        return [np.dtype(dtype or np.float32) for dtype in self.symbol.infer_type_partial(**types)[1] or ()]

    def custom_op(self) -> CustomOp:
        """A new instance of a CustomOp, as a graph would make it."""
        assert self.subject.prop is not None
        shapes = [*self.shapes.values(), *self.state_shapes.values()]
        types = [*self._plain.values(), *[np.dtype(np.float32)] * len(self.states)]
        prop = self.subject.prop(self.case.params)
        return prop.create_operator(default_context(), [list(shape) for shape in shapes], [spec.type for spec in types])

    def heads(self, outputs: Sequence[Any], factor: float = 1.0) -> list[np.ndarray[Any, Any]]:
        """Gradients of the outputs, the same every time."""
        drawn = np.random.default_rng(5)
        return [(factor * drawn.uniform(0.2, 1, out.shape)).astype(out.dtype) for out in outputs]

    def _has_backward(self) -> bool:
        if self.subject.prop is not None:
            return type(self.custom_op()).backward is not CustomOp.backward
        if self.subject.kind == "registry":
            self.has_backward = True
            try:
                self.bind().forward()
            except UnsupportedError:
                return False
            except MXNetError:
                return True  # of the run that follows
        return True

    def bind(self, **how: Any) -> Bound:
        """See `Bound`."""
        return Bound(self, **how)


class Bound:
    """An executor of a trial.

    Args:
        trial: of what.
        dtype: of all arguments.
        values: in place of the trial's.
        grad_req: for all arguments.
        before: what gradients hold before backward.
        padded: arguments and states are rows of larger arrays, whose other rows are watched.
    """

    def __init__(
        self,
        trial: Trial,
        dtype: Any = np.float32,
        values: Mapping[str, np.ndarray[Any, Any]] | None = None,
        grad_req: str = "write",
        before: float = 0.0,
        padded: bool = False,
    ) -> None:
        self.trial = trial
        types = trial.types(dtype)
        self.values = {name: value.astype(types[name]) for name, value in (values or trial.values).items()}
        self._larger: dict[str, Any] = {}
        context = default_context()
        self._heard, self._before = context.session.heard, before
        make = self._padded if padded else lambda name, value: ndarray.array(value, context, value.dtype)
        self.arguments = {name: make(name, value) for name, value in self.values.items()}
        state_types = dict(zip(trial.states, trial.symbol.infer_type_partial(**self._types())[2] or (), strict=False))
        self.states = {
            name: ndarray.array(value, context, state_types.get(name) or dtype)
            for name, value in trial.state_values().items()
        }
        self.grads = {
            name: ndarray.array(np.full(value.shape, before), context, value.dtype)
            for name, value in self.values.items()
        }
        self.executor = trial.symbol.bind(
            context,
            args=self.arguments,
            args_grad=self.grads,
            grad_req=grad_req if trial.has_backward else "null",
            aux_states=self.states,
        )

    def _types(self) -> dict[str, Any]:
        return {name: value.dtype for name, value in self.values.items()}

    def _padded(self, name: str, value: np.ndarray[Any, Any]) -> Any:
        context = default_context()
        if not value.ndim:
            return ndarray.array(value, context, value.dtype)
        edge = np.full((1, *value.shape[1:]), 77, value.dtype)
        self._larger[name] = ndarray.array(np.concatenate([edge, value, edge]), context, value.dtype)
        return self._larger[name][1 : 1 + len(value)]

    def edges(self) -> list[str]:
        """The arguments around which something was written."""
        names = []
        for name, larger in self._larger.items():
            host = larger.asnumpy()
            if not ((host[0] == 77).all() and (host[-1] == 77).all()):
                names.append(name)
        return names

    def forward(self, is_train: bool = True, before: float = 77, seed: int = SEED) -> list[np.ndarray[Any, Any]]:
        """The outputs of a run from the same seed and states each time; `before` is what they hold until then."""
        random.seed(seed)
        for name, value in self.trial.state_values().items():
            self.states[name][:] = value
        for output in self.executor.outputs:
            if output.size:
                output[:] = before
        self._heard.clear()
        self.executor.forward(is_train=is_train)
        outputs = [output.asnumpy() for output in self.executor.outputs]
        for number, output in enumerate(outputs):
            if self._unwritten(f"forward: expected output {number} "):
                outputs[number] = np.full_like(output, before)
        return outputs

    def _unwritten(self, part: str) -> bool:
        """Return whether the engine has filled what the operator did not write, and said so."""
        return any(part in sentence for sentence in self._heard)

    def heads(self, factor: float = 1.0) -> list[np.ndarray[Any, Any]]:
        """Gradients of the outputs, the same every time."""
        return self.trial.heads(self.executor.outputs, factor)

    def backward(self, factor: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
        """The gradients, after a forward run, for heads times `factor`; none where there is no backward.

        Raises:
            AssertionError: it writes to the gradients from above.
        """
        if not self.trial.has_backward:
            return {}
        context, heads = default_context(), self.heads(factor)
        head_grads = [ndarray.array(head, context, head.dtype) for head in heads]
        self._heard.clear()
        self.executor.backward(head_grads)
        grads = {name: array.asnumpy() for name, array in self.grads.items()}
        for number, name in enumerate(self.trial.arguments):
            if self._unwritten(f"backward: expected gradient {number} "):
                grads[name] = np.full_like(grads[name], self._before)
        for name, before, after in zip(self.trial.outputs, heads, head_grads, strict=True):
            assert np.array_equal(before, after.asnumpy()), f"backward writes to the gradient of {name}"
        return grads

    def now(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the current values of the arguments."""
        return {name: array.asnumpy() for name, array in self.arguments.items()}

    def states_now(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the current values of the auxiliary states."""
        return {name: array.asnumpy() for name, array in self.states.items()}


def usual_case(subject: Subject) -> tuple[Case, str]:
    """A case of usual shapes that it takes, of the first input alone or all inputs alike; and what failed before.

    Raises:
        ValueError: it takes none of them; says to add `lint_cases`.
    """
    refused: list[str] = []
    broken: list[str] = []
    try:
        arguments: Sequence[str] = subject.build({}).list_arguments()
    except Exception as error:
        raise ValueError(
            f"it cannot be made without parameters ({error}): add lint_cases with params to the class"
        ) from None
    if not arguments:
        return Case({}), ""
    for shape in USUAL:
        for names in (arguments[:1], arguments):
            case = Case(dict.fromkeys(names, shape))
            try:
                trial = Trial(subject, case)
            except Exception as error:
                refused.append(f"{shape}: {error}")
                continue
            try:
                trial.bind().forward()
            except Exception as error:
                # Where all shapes were given, infer_shape may not have looked at them.
                (broken if names == arguments[:1] else refused).append(f"{shape}: {error}")
                continue
            said = f"infer_shape takes {broken[0]}" if broken else ""
            if said and len(shape) < 2:
                break
            return case, said
    if broken:
        raise ValueError(
            f"forward fails for a shape that infer_shape takes; correct it, or add lint_cases ({broken[0]})"
        )
    raise ValueError(f"it takes none of the usual shapes; add lint_cases to it (with {refused[0]})")
