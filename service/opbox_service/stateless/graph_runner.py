"""Forward and backward of a graph on the tensors of one call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field

from opbox_ops.backend import backend_for, device_name
from opbox_protocol.errors import BadRequestError, UnsupportedError
from opbox_protocol.routes import GRAD, HEAD_GRAD

from ..carriers import AnswerLimit, OwnerQuota
from ..device_time import DeviceTimes
from ..graph.ir import Graph
from ..quota import Ledger
from ..settings import Settings
from ..validation import Expected, RandomSeed, Strict
from .graph_batches import GraphBatches, GraphCall
from .graph_cache import GraphCache
from .plans import Compiled, PlanCache

__all__ = ["BackwardParameters", "Device", "ForwardParameters", "GraphRunner", "RunParameters", "check_device"]

NO_LIMIT = AnswerLimit()
Array: TypeAlias = "np.ndarray[Any, Any]"
Device = Annotated[
    str, Field(description="cpu, gpu, gpu:1; by default the server's."), Expected("a name such as 'cpu' or 'gpu'")
]


class RunParameters(Strict):
    """The parameters of a graph's run."""

    is_train: bool | None = Field(default=None, description="Training mode; false for forward, true for backward.")
    seed: RandomSeed = 0
    device: Device | None = None
    tensor_alignment: Literal[64] | None = Field(default=None, description="Of a frame whose tensors are aligned.")


class ForwardParameters(RunParameters):
    """The parameters of a graph's run forward."""

    batch: bool = Field(
        default=False,
        description="Whether calls of equal graphs and weights may run as one, along the first axis of arguments that "
        "operators call data or label.",
    )


class BackwardParameters(RunParameters):
    """The parameters of a graph's run, forward and backward."""

    grads: Annotated[list[str] | None, Expected("a list of argument names")] = Field(
        default=None, description="The arguments whose gradients are wanted; all by default."
    )


class GraphRunner:
    """Runs graphs on plans that are compiled once.

    Args:
        settings: the limits, and the device of calls that name none.
        graphs: the graphs that calls name by hash.
        device_times: counts how long runs take.
        ledger: counts the memory that they take.
    """

    def __init__(self, settings: Settings, graphs: GraphCache, device_times: DeviceTimes, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._graphs = graphs
        self._device_times = device_times
        self._plans = PlanCache(settings.plan_cache, settings.plan_cache_bytes)
        self._batches = GraphBatches(self._run_forward)
        ledger.give_up = self._plans.clear

    def close(self) -> None:
        """Drop all compiled plans."""
        self._plans.clear()

    def run(
        self,
        reference: Any,
        parameters: RunParameters,
        tensors: Mapping[str, Array],
        take: Callable[[dict[str, Array]], None],
        limit: AnswerLimit = NO_LIMIT,
        *,
        fail: Callable[[Exception], None],
        backward: bool,
        owner: str,
        quota: OwnerQuota | None = None,
    ) -> None:
        """Run a graph forward, and backward if asked.

        Args:
            reference: the graph, or its hash.
            parameters: ForwardParameters or BackwardParameters.
            tensors: by argument and auxiliary state; for backward head gradients too, as `head_grad:<output>`.
            take: gets the outputs, which are valid while it runs.
            limit: how large the outputs, and for backward the gradients, may be.
            fail: gets the error of a call that ran together with others, by this thread or another.
            owner: for whom, and whose memory it takes meanwhile.
            quota: of the owner; None for the settings'.

        Raises:
            BadRequestError: a tensor is missing, or is nobody's.
            LimitError: the outputs would be too large; nothing has run.
            ShapeError, DTypeError: tensors contradict the graph.
        """
        device = check_device(parameters.device, self._settings)
        key, graph = self._graphs.resolve(reference, owner)
        inputs, heads = _split(tensors) if backward else (tensors, {})
        _check_names(graph, inputs, heads)
        wrt = _wanted(graph, parameters, inputs) if isinstance(parameters, BackwardParameters) else ()
        limit_bytes = self._settings.max_session_bytes if quota is None else quota.session_bytes
        is_train = backward if parameters.is_train is None else parameters.is_train
        call = GraphCall(owner, key, graph, device, inputs, limit_bytes, parameters.seed, is_train)
        batch = isinstance(parameters, ForwardParameters) and parameters.batch
        if not batch or not self._batches.join(call, take, fail, limit):
            self._compute(call, take, limit, heads if backward else None, wrt)

    def _run_forward(self, call: GraphCall, take: Callable[[dict[str, Array]], None]) -> None:
        self._compute(call, take, NO_LIMIT, None, ())

    def _compute(
        self,
        call: GraphCall,
        take: Callable[[dict[str, Array]], None],
        limit: AnswerLimit,
        heads: Mapping[str, Array] | None,
        wrt: tuple[str, ...],
    ) -> None:
        """Run a call on a plan for it; backward too, unless there are no `heads` at all."""
        owner, graph, device = call.owner, call.graph, call.device
        host = backend_for(device)
        memory = self._ledger.of(owner, device)
        begun = time.monotonic()
        with host.scope(), contextlib.ExitStack() as counting:
            # Of a run that fails or is ended too; before the answer, so that who has it may count on it.
            counting.callback(lambda: self._device_times.add(owner, device, 0.0, time.monotonic() - begun))
            compiled = self._plans.take(
                owner, call.key, graph, call.tensors, wrt, device, host, memory, call.limit_bytes
            )
            try:
                limit.check("the outputs", [*compiled.executor.outputs, *compiled.grads.values()])
                compiled.write(call.tensors)
                compiled.random.seed(call.seed)
                outputs = _outputs(graph.output_names, compiled, heads, call.is_train)
                counting.close()
                take(outputs)
            except BaseException:
                compiled.drop()
                raise
            self._plans.give_back(compiled)


def _outputs(
    names: Sequence[str], compiled: Compiled, heads: Mapping[str, Array] | None, is_train: bool
) -> dict[str, Array]:
    """The outputs of a run forward, and the gradients of one backward where there are head gradients, or none of them.

    None says that it does not run backward.
    """
    executor = compiled.executor
    backend: Any = compiled.backend
    executor.forward(is_train=is_train, parameters=compiled.version)
    outputs = {name: backend.get(array) for name, array in zip(names, executor.outputs, strict=True)}
    if heads is not None:
        # Backward may write over an output that is an input's array, or that it needs no more.
        compiled.budget.reserve(sum(int(array.nbytes) for array in outputs.values()))
        outputs = {name: array.copy() for name, array in outputs.items()}
        head_grads = [backend.put(heads[name]) if name in heads else None for name in names]
        executor.backward(head_grads, is_train=is_train)
        outputs |= {GRAD + name: backend.get(array) for name, array in compiled.grads.items()}
    return outputs


def _split(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The tensors of a backward call: arguments and states, and head gradients by output."""
    inputs, heads = dict[str, Array](), dict[str, Array]()
    for name, tensor in tensors.items():
        if name.startswith(HEAD_GRAD):
            heads[name.removeprefix(HEAD_GRAD)] = tensor
        else:
            inputs[name] = tensor
    return inputs, heads


def check_device(device: str | None, settings: Settings) -> str:
    """Return the canonical name of the device that a request names, by default the settings' device.

    A second name would have a second quota, and a line of its own in the metrics.

    Raises:
        UnsupportedError: this server does not offer the device.
    """
    name = device_name(settings.device if device is None else device)
    if settings.devices and name not in map(device_name, settings.devices):
        raise UnsupportedError(f"device {name!r}: expected one of {', '.join(settings.devices)}")
    return name


def _check_names(graph: Graph, inputs: Mapping[str, Array], heads: Mapping[str, Array]) -> None:
    if not heads and inputs.keys() == graph.input_names:
        return
    names = [*graph.argument_names, *graph.auxiliary_names]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise BadRequestError(f"input {missing[0]!r} is missing: expected tensors named {', '.join(names[:20])}")
    known = set(names)
    extra = [name for name in inputs if name not in known]
    if extra:
        raise BadRequestError(f"input {extra[0]!r} is none of the graph's: expected {', '.join(names[:20]) or 'none'}")
    outputs = graph.output_names
    known = set(outputs)
    stray = [name for name in heads if name not in known]
    if stray:
        raise BadRequestError(f"head gradient {stray[0]!r}: expected one of the outputs {', '.join(outputs[:20])}")


def _wanted(graph: Graph, parameters: BackwardParameters, inputs: Mapping[str, Array]) -> tuple[str, ...]:
    if parameters.grads is None:
        return tuple(name for name in graph.argument_names if inputs[name].dtype.kind in "fV")
    known = set(graph.argument_names)
    for name in parameters.grads:
        if name not in known:
            raise BadRequestError(f"grads: {name!r}: expected one of {', '.join(graph.argument_names[:20])}")
    return tuple(dict.fromkeys(parameters.grads))
