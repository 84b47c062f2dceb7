"""ModelPlans: the compiled plans of one model. One that is idle serves the next call like the one before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from opbox_ops.backend import Backend, RandomSource
from opbox_protocol.errors import ShapeError

from ..executor import BoundPlan, bind
from ..graph.ir import Graph
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type
from ..quota import Budget, MeteredBackend
from ..task import graph_budget

__all__ = ["IDLE_PLANS", "KEPT_PLANS", "ModelPlan", "ModelPlans", "PlanKind", "TensorForm"]

Array: TypeAlias = "np.ndarray[Any, Any]"
TensorForm: TypeAlias = "tuple[tuple[int, ...], Any]"
"""The shape and type of a tensor."""
KEPT_PLANS = 16
"""Number of idle plans of a model's outputs to keep, for shapes that come again."""
IDLE_PLANS = {"outputs": KEPT_PLANS, "inner": 8, "gradients": 4}
"""The same by purpose: no plan pushes out one of another purpose. Those with gradients take most memory."""


class PlanKind(NamedTuple):
    """What a plan computes.

    Attributes:
        names: of the values that it computes (`InnerValues.graph_of`); none: the network's own outputs.
        wrt: arguments whose gradients it computes; none: it only runs forward.
        inner: whether some of the values are none of the network's outputs.
    """

    names: tuple[str, ...] = ()
    wrt: tuple[str, ...] = ()
    inner: bool = False

    @property
    def purpose(self) -> str:
        """Which plans it is kept with."""
        return "gradients" if self.wrt else "inner" if self.inner else "outputs"


@dataclass(slots=True)
class ModelPlan:
    """A bound plan, and the arrays that calls write to and read from.

    Attributes:
        bound: computes.
        inputs, labels: by argument; those that the plan reads.
        grads: gradients by argument.
        states: copies of the parameters that a run changes, by name; the model's own stay as they are.
        random: what operators draw from.
    """

    key: tuple[Any, ...]
    kind: PlanKind
    bound: BoundPlan
    inputs: Mapping[str, Any]
    labels: Mapping[str, Any]
    grads: Mapping[str, Any]
    states: Mapping[str, Any]
    random: RandomSource
    budget: Budget

    def write_labels(self, tensors: Mapping[str, Array], backend: Any) -> None:
        """Copy labels into the plan, in its own type.

        Raises:
            ShapeError: one has another shape than the network wants.
        """
        for name, array in self.labels.items():
            if tensors[name].shape != tuple(array.shape):
                raise ShapeError(f"input {name!r}: expected shape {list(array.shape)}, got {list(tensors[name].shape)}")
            backend.write(array, tensors[name].astype(array.dtype, copy=False))


class ModelPlans:
    """Plans by what they compute and the shapes of their inputs. Safe to call from many threads.

    Args:
        params: arrays by argument and auxiliary state, which all plans read in place.
        labels: arguments that training alone reads; a plan has zeros for them until a call says otherwise.
        backend: where they run.
        memory: counts what they take.
        inside: a block in which the model's own operators may be compiled and run.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        labels: Collection[str],
        backend: Backend,
        memory: Budget,
        inside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._params = params
        self._labels = frozenset(labels)
        self._backend = backend
        self._memory = memory
        self._inside = inside
        self._anywhere = inside is nullcontext and backend.device_type == "cpu"
        self._idle: dict[str, list[ModelPlan]] = {purpose: [] for purpose in IDLE_PLANS}
        self._lock = threading.Lock()
        self._at_work: set[_RunningPlan] = set()

    def running(self, graph: Graph, kind: PlanKind, forms: Mapping[str, TensorForm]) -> _RunningPlan:
        """A plan for inputs of such shapes and types, the caller's own in the block; dropped when that fails.

        Args:
            graph: of the values that `kind` names.
            kind: what it computes.
            forms: of the model's inputs, in their order; those that the graph does not read are left aside.

        Raises:
            QuotaError: there is no memory for it.
            ShapeError, DTypeError, …: as `bind`.
        """
        return _RunningPlan(self, graph, kind, forms)

    def scope(self) -> AbstractContextManager[object] | None:
        """The block runs on the plans' device, with the operators that came with the model; None where any does."""
        if self._anywhere:
            return None
        with ExitStack() as scope:
            scope.enter_context(self._inside())
            scope.enter_context(self._backend.scope())
            return scope.pop_all()

    @property
    def busy(self) -> int:
        """Number of calls that have a plan, or wait until it is compiled."""
        return len(self._at_work)

    @property
    def nbytes(self) -> int:
        """Bytes of the idle plans."""
        with self._lock:
            return sum(plan.budget.used for plans in self._idle.values() for plan in plans)

    def close(self) -> None:
        """Drop the idle plans."""
        with self._lock:
            idle = [plan for plans in self._idle.values() for plan in plans]
            for plans in self._idle.values():
                plans.clear()
        for plan in idle:
            plan.budget.close()

    def take(self, graph: Graph, kind: PlanKind, forms: Mapping[str, TensorForm]) -> ModelPlan:
        """An idle plan, or a new one; see `running`."""
        key = (kind, *[shape for shape, _ in forms.values()])
        with self._lock:
            idle = self._idle[kind.purpose]
            for i, plan in enumerate(idle):
                if plan.key == key:
                    return idle.pop(i)
        budget = Budget(self._memory.limit, self._memory, "memory of the model")
        try:
            return self._bind(key, graph, kind, forms, budget)
        except BaseException:
            budget.close()
            raise

    def _bind(
        self, key: tuple[Any, ...], graph: Graph, kind: PlanKind, forms: Mapping[str, TensorForm], budget: Budget
    ) -> ModelPlan:
        backend: Any = MeteredBackend(self._backend, budget)
        names, auxiliary = graph.input_names, set(graph.auxiliary_names)
        inputs = {name: backend.empty(*form) for name, form in forms.items() if name in names}
        params = {name: array for name, array in self._params.items() if name in names}
        changed = _changed_by_training(graph) if kind.wrt else ()
        states = {name: backend.empty(params[name].shape, params[name].dtype) for name in changed if name in params}
        known = {**params, **states, **inputs}
        labels = {name: backend.put(array) for name, array in self._zeros(graph, known).items()}
        known |= labels
        grads = {name: backend.empty(known[name].shape, known[name].dtype) for name in kind.wrt}
        random = backend.random(0)
        bound = bind(
            graph,
            args={name: array for name, array in known.items() if name not in auxiliary},
            grads=grads,
            aux={name: array for name, array in known.items() if name in auxiliary},
            backend=backend,
            random=random,
            max_bytes=budget.limit,
            infer_apart=False,
        )
        budget.keep(bound.nbytes_with(inputs, labels, grads, states))
        budget.settle()
        return ModelPlan(key, kind, bound, inputs, labels, grads, states, random, budget)

    def _zeros(self, graph: Graph, known: Mapping[str, Any]) -> dict[str, Array]:
        """Zeros for the labels that the graph reads."""
        labels = [name for name in graph.argument_names if name in self._labels]
        if not labels:
            return {}
        with graph_budget():
            shapes = infer_shape(graph, {name: tuple(array.shape) for name, array in known.items()}).arg_shapes
            types = infer_type(graph, {name: array.dtype for name, array in known.items()}, partial=True).arg_types
        forms = dict(zip(graph.argument_names, zip(shapes, types, strict=True), strict=True))
        return {name: np.zeros(forms[name][0] or (), np.dtype(forms[name][1] or np.float32)) for name in labels}

    def give_back(self, plan: ModelPlan) -> None:
        """Keep a plan for the next call."""
        purpose = plan.kind.purpose
        with self._lock:
            idle = self._idle[purpose]
            idle.append(plan)
            dropped = idle.pop(0) if len(idle) > IDLE_PLANS[purpose] else None
        if dropped is not None:
            dropped.budget.close()


class _RunningPlan:
    """A block that has a plan of its own. A generator in its place would take as long as a small run.

    Args:
        plans, graph, kind, forms: see `ModelPlans.running`.
    """

    __slots__ = ("_forms", "_graph", "_kind", "_plan", "_plans", "_scope")

    def __init__(self, plans: ModelPlans, graph: Graph, kind: PlanKind, forms: Mapping[str, TensorForm]) -> None:
        self._plans = plans
        self._graph = graph
        self._kind = kind
        self._forms = forms

    def __enter__(self) -> ModelPlan:
        scope = self._scope = self._plans.scope()
        at_work = self._plans._at_work  # a set, as adding to it takes no lock
        at_work.add(self)
        try:
            plan = self._plan = self._plans.take(self._graph, self._kind, self._forms)
        except BaseException:
            at_work.discard(self)
            if scope is not None:
                scope.__exit__(*sys.exc_info())
            raise
        return plan

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None:
                self._plans.give_back(self._plan)
            else:
                self._plan.budget.close()
        finally:
            self._plans._at_work.discard(self)
            if self._scope is not None:
                self._scope.__exit__(kind, error, trace)


def _changed_by_training(graph: Graph) -> set[str]:
    """The variables that a run with gradients writes: states, and the gammas that BatchNorm fixes at 1."""
    names = set(graph.auxiliary_names)
    for node in graph.nodes:
        if node.op is not None and getattr(node.params, "fix_gamma", False):
            slots = zip(node.op.input_names(node.params), node.inputs, strict=False)
            names |= {entry.node.name for slot, entry in slots if slot == "gamma" and entry.node.op is None}
    return names
