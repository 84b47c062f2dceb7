"""GradientRuns: gradients of a served network, as `backward` of an executor has them; the network never changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from opbox_ops.backend import Backend
from opbox_protocol.errors import BadRequestError
from opbox_protocol.near_names import near_names
from opbox_protocol.routes import GRAD, HEAD_GRAD

from ..carriers import AnswerLimit
from ..graph.ir import Graph
from .inner_values import InnerValues
from .model_plans import ModelPlans, PlanKind, TensorForm

__all__ = ["GradientRuns"]

Array: TypeAlias = "np.ndarray[Any, Any]"


class GradientRuns:
    """Runs a model forward and backward. Safe to call from many threads.

    Args:
        inner: the values that head gradients may be of.
        plans: run it.
        params: arrays by argument and auxiliary state.
        inputs: the model's inputs, with their types.
        labels: arguments that losses compare with.
        backend: where it runs.
    """

    def __init__(
        self,
        inner: InnerValues,
        plans: ModelPlans,
        params: Mapping[str, Any],
        inputs: Mapping[str, np.dtype[Any]],
        labels: Collection[str],
        backend: Backend,
    ) -> None:
        self._inner = inner
        self._plans = plans
        self._params = params
        self._inputs, self._labels = tuple(inputs), frozenset(labels)
        types = {**inputs, **{name: array.dtype for name, array in params.items()}}
        self._differentiable = frozenset(name for name, dtype in types.items() if dtype.kind in "fV")
        self._backend = backend

    def names(self) -> list[str]:
        """What requests may ask for: a gradient for each input and parameter of a floating-point type."""
        return [GRAD + name for name in self._inner.graph_of(()).argument_names if name in self._differentiable]

    def run(
        self,
        tensors: Mapping[str, Array],
        forms: Mapping[str, TensorForm],
        wanted: Sequence[str] | None,
        take: Callable[[dict[str, Array]], None],
        limit: AnswerLimit,
        *,
        is_train: bool,
        seed: int,
    ) -> None:
        """Compute what a request wants; see `LoadedModel.backward`."""
        heads = {name.removeprefix(HEAD_GRAD): tensor for name, tensor in tensors.items() if name.startswith(HEAD_GRAD)}
        self._inner.check("head gradient", heads)
        names = self._inner.beyond_outputs(heads)
        graph, outputs = self._inner.graph_of(names), self._inner.names_of(names)
        wrt, values = self._wanted(graph, outputs, wanted)
        absent = [name for name in graph.argument_names if name in self._labels and name not in tensors]
        if absent:
            raise BadRequestError(
                f"input {absent[0]!r} is missing: expected the labels that the loss compares with, or a head gradient "
                f"of a value before the loss, as {HEAD_GRAD}NAME"
            )
        with self._plans.running(graph, PlanKind(names, wrt), forms) as plan:
            backend: Any = self._backend
            arrays = {name: plan.bound.outputs[outputs.index(name)] for name in values}
            grads = {GRAD + name: plan.grads[name] for name in wrt}
            limit.check("the answer", [*arrays.values(), *grads.values()])
            for name, array in plan.inputs.items():
                backend.write(array, tensors[name])
            plan.write_labels(tensors, backend)
            for name, array in plan.states.items():
                array[...] = self._params[name]
            plan.random.seed(seed)
            plan.bound.forward(is_train=is_train, parameters=0)
            # Backward may write over an output that it needs no more.
            answer = {name: np.array(backend.get(array)) for name, array in arrays.items()}
            head_grads = [backend.put(heads[name]) if name in heads else None for name in outputs]
            plan.bound.backward(head_grads, is_train=is_train)
            answer |= {name: backend.get(array) for name, array in grads.items()}
            take({name: answer[name] for name in wanted} if wanted is not None else answer)

    def _wanted(
        self, graph: Graph, outputs: Sequence[str], wanted: Sequence[str] | None
    ) -> tuple[tuple[str, ...], list[str]]:
        """The arguments and the outputs that a request names; by default the inputs."""
        possible = [name for name in graph.argument_names if name in self._differentiable]
        if wanted is None:
            wanted = [GRAD + name for name in possible if name in self._inputs]
        names = {name.removeprefix(GRAD) for name in wanted if name.startswith(GRAD)}
        known = {*(GRAD + name for name in possible), *outputs}
        stray = [name for name in wanted if name not in known]
        if stray:
            near = near_names(stray[0][:80], known) or [GRAD + name for name in possible[:20]]
            raise BadRequestError(
                f"output {stray[0][:80]!r}: expected the gradient of an argument, or an output that it is computed "
                f"from, such as {', '.join(near)}"
            )
        if not names:
            raise BadRequestError(
                f"outputs: expected at least one gradient, such as {GRAD}{next(iter(possible), 'NAME')}, got none"
            )
        return tuple(name for name in possible if name in names), [name for name in wanted if name in set(outputs)]
