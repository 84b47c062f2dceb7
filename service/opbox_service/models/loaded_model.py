"""LoadedModel: a network with its parameters on a device, and the plans that run it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from opbox_ops.backend import Backend
from opbox_protocol.datatypes import dtype_of
from opbox_protocol.errors import BadRequestError, ForbiddenError
from opbox_protocol.routes import HEAD_GRAD

from ..carriers import NO_LIMIT, AnswerLimit
from ..graph.ir import Graph
from ..quota import Budget, MeteredBackend
from ..task import Task, current
from .batch_runs import BatchRuns, batch_sizes, runs_at_once
from .batching import Batcher
from .gradients import GradientRuns
from .inner_values import InnerValues
from .known_requests import KnownRequests, RunForm
from .model_config import ModelConfig
from .model_files import ModelNetwork
from .model_plans import KEPT_PLANS, ModelPlans
from .model_signature import ModelSignature, ServedTensor
from .own_code import OwnCode
from .request_queue import NO_WISHES, QueueWishes, WaitingRequest
from .response_cache import AnswerKey, ResponseCache, check_repeats
from .run_forms import RunForms
from .statistics import ModelStatistics
from .warmup import known_shapes, warmup_tensors

__all__ = ["LoadedModel"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Take: TypeAlias = "Callable[[dict[str, Array]], None]"
_numbers = itertools.count()


class LoadedModel:
    """A model that is ready to run. Safe to call from many threads.

    Args:
        name: of the model, for errors.
        network: the graph and its parameters.
        config: what the model's file says.
        backend: where it runs.
        memory: counts the memory of the parameters and plans.
        device: the backend's name.
        labels: the names of classes, in order.
        spend: called with an owner and the seconds that the owner's request took of a run.
        code: the operators that came with it; None for most.
        owner: who published it; "" for a model of the server's folder.
        answers: keeps answers of models whose files ask for it; None: nobody does.
        beside: the same model on another device, whose statistics and known requests are this one's too.

    Attributes:
        inputs, outputs: what it takes and gives.
        variables: what is known of the shapes and types of the graph's variables.
        statistics: of its requests.
        known_requests: those that came before.
        labels: the names of classes, in order.
        device: where it runs.
        owner: who published it; "" for a model of the server's folder.

    Raises:
        BadRequestError: the parameters do not fit the graph, or the config does not.
        ShapeError, DTypeError: the graph contradicts itself.
        QuotaError: there is no memory for it.
    """

    def __init__(
        self,
        name: str,
        network: ModelNetwork,
        config: ModelConfig,
        backend: Backend,
        memory: Budget,
        device: str,
        labels: Sequence[str] = (),
        spend: Callable[[str, float], None] = lambda owner, seconds: None,
        code: OwnCode | None = None,
        owner: str = "",
        answers: ResponseCache | None = None,
        beside: LoadedModel | None = None,
    ) -> None:
        self._subject = f"model {name!r}"
        self._graph = network.graph
        self._backend = backend
        self._memory = memory
        self._code = code
        signature = self._signature = ModelSignature(network, config)
        self.inputs, self.outputs, self.variables = signature.inputs, signature.outputs, signature.variables
        self.default_outputs = signature.default_outputs
        if config.response_cache:
            check_repeats(network.graph)
        self._answers = answers if config.response_cache else None
        self._number: int = next(_numbers) if beside is None else beside._number
        self._budget = Budget(memory.limit, memory, "memory of the model")
        try:
            metered: Any = MeteredBackend(backend, self._budget)
            with backend.scope():
                self._params = {name: metered.put(array) for name, array in network.params.items()}
            self._budget.keep(sum(int(array.nbytes) for array in self._params.values()))
            self._budget.settle()
        except BaseException:
            self._budget.close()
            raise
        self._inner = InnerValues(network.graph, signature.output_names)
        inside: Callable[[], AbstractContextManager[None]] = nullcontext if code is None else code.inside
        self._plans = ModelPlans(self._params, signature.labels, backend, memory, inside)
        types = {one.name: np.dtype(dtype_of(one.datatype)) for one in self.inputs}
        self._tells_inside = config.inner_values
        self._gradients = GradientRuns(self._inner, self._plans, self._params, types, signature.labels, backend)
        self._axis = signature.batch_axis
        self._sizes = batch_sizes(config)
        shapes = {name: tuple(array.shape) for name, array in self._params.items()}
        largest = self._sizes[-1] if config.max_batch > 1 else None
        self._forms = RunForms(signature, self._inner, shapes, largest)
        self.statistics: ModelStatistics = ModelStatistics() if beside is None else beside.statistics
        self.known_requests: KnownRequests = KnownRequests() if beside is None else beside.known_requests
        self.device = device
        self.owner = owner
        self.labels = list(labels)
        self._spend = spend
        self._batcher: Batcher | None = None
        if config.max_batch > 1:
            if self._axis is None:
                raise BadRequestError("max_batch: expected 1 without a batch axis, got more: set batch_axis")
            delay_s, at_once = config.max_delay_us / 1e6, runs_at_once(backend) if code is None else 1
            self._batcher = Batcher(
                self, config.max_batch, delay_s, config.max_queue, self._subject, self._sizes, at_once
            )
            names = [one.name for one in self.inputs]
            self._batches = BatchRuns(self._plans, names, self._inner, backend, self._axis, self._sizes)

    def of_raw(self, data: memoryview) -> dict[str, Array]:
        """The only input, of a request whose body is its bytes and nothing else; see `ModelSignature.of_raw`."""
        return self._signature.of_raw(data)

    @property
    def gathers(self) -> Batcher | None:
        """What takes the requests of runs that are for several, without a word about each; None where none does."""
        return self._batcher if self._answers is None else None

    @property
    def busy(self) -> int:
        """Number of requests that run here or wait for a run."""
        return self._plans.busy + (0 if self._batcher is None else self._batcher.waiting)

    def infer(
        self,
        owner: str,
        tensors: Mapping[str, Array],
        outputs: Sequence[str],
        take: Callable[[dict[str, Array]], None],
        fail: Callable[[Exception], None],
        limit: AnswerLimit,
        wishes: QueueWishes = NO_WISHES,
        form: RunForm | None = None,
        waited_for: bool = False,
    ) -> RunForm:
        """Run the network on a request's tensors; together with other requests, if the model's file says so.

        Args:
            owner: whose request it is.
            tensors: by input.
            outputs: names of those that are wanted, be they the network's or of values inside it.
            take: gets them, in this thread or another; they are valid while it runs.
            fail: gets an error that the request ends with after this has returned.
            limit: how large they may be.
            wishes: its priority, and how long it may wait.
            form: of a request like it, which this returned: what that was checked for is not checked again.
            waited_for: whether other calls wait for this thread: it begins no run of several requests (`gathers`).

        Raises:
            BadRequestError: an input is missing or nobody's, or has another type or shape; an output is unknown.
            NotReadyError: it has waited for too long.
            QuotaError: too many requests wait for the model.
        """
        task = current()
        came = time.monotonic() if task is None else task.came
        try:
            wishes.check(self._subject, came)
            if form is None:
                form = self._form(owner, tensors, outputs)
            if self._answers is not None:
                keep = self._answered_before(self._answers, owner, tensors, form, take, limit, came)
                if keep is None:
                    return form
                take = keep
            if form.alone:
                self._run_alone(owner, tensors, form, take, limit, came, waited_for=waited_for)
                return form
        except BaseException:
            self.statistics.failed(time.monotonic() - came)
            raise
        self._run_with_others(owner, tensors, form, take, fail, limit, wishes, task, came, begins=not waited_for)
        return form

    def _answered_before(
        self,
        answers: ResponseCache,
        owner: str,
        tensors: Mapping[str, Array],
        form: RunForm,
        take: Take,
        limit: AnswerLimit,
        came: float,
    ) -> Take | None:
        """Answer a request as one before it; where none was, what takes its answer and keeps it."""
        begun = time.monotonic()
        key = AnswerKey.of(self._number, owner, form.outputs, tensors)
        answer = answers.get(key)
        self.statistics.looked_up(time.monotonic() - begun, hit=answer is not None)
        if answer is None:
            return self._keeping(answers, key, take)
        limit.check("the outputs", answer.values())
        take(answer)  # and that says nothing of how long the next run takes (RunForm.runs)
        self.statistics.succeeded(form.examples, begun - came, time.monotonic() - came, None)
        return None

    def _run_alone(
        self,
        owner: str,
        tensors: Mapping[str, Array],
        form: RunForm,
        take: Take,
        limit: AnswerLimit,
        came: float,
        *,
        waited_for: bool,
    ) -> None:
        """Make a run of one request."""
        begun, worked = time.monotonic(), 0.0 if waited_for else time.thread_time()
        examples = form.examples

        def counted(values: dict[str, Array]) -> None:
            now = time.monotonic()  # and not when the answer has left: its client may ask for the figures
            self.statistics.ran_alone(examples, now - begun, begun - came, now - came)
            take(values)

        try:
            self._run(form, tensors, counted, limit)
        finally:
            seconds = time.monotonic() - begun
            self._spend(owner, seconds)
        if self._backend.device_type == "cpu":  # a thread that waits for another device works none of the time
            form.runs.ran(seconds, 0.0 if waited_for else time.thread_time() - worked, waited_for=waited_for)

    def _run_with_others(
        self,
        owner: str,
        tensors: Mapping[str, Array],
        form: RunForm,
        take: Take,
        fail: Callable[[Exception], None],
        limit: AnswerLimit,
        wishes: QueueWishes,
        task: Task | None,
        came: float,
        *,
        begins: bool,
    ) -> None:
        """Have a request run together with others; one that `begins` makes the run, if no other thread does."""
        assert self._batcher is not None

        def bounded(values: dict[str, Array]) -> None:
            limit.check("the outputs", values.values())
            take(values)

        def count_failed(error: Exception) -> None:
            self.statistics.failed(time.monotonic() - came)
            fail(error)

        weight = task.weight if task is not None else 1.0
        entry = WaitingRequest(
            owner,
            tensors,
            form.examples,
            take if limit is NO_LIMIT else bounded,
            count_failed,
            form.outputs,
            task,
            form.batch,
            came,
            wishes,
            weight,
        )
        (self._batcher.join if begins else self._batcher.add)(entry)

    @staticmethod
    def _keeping(answers: ResponseCache, key: AnswerKey, take: Take) -> Take:
        """What takes an answer, and keeps it for requests that come again."""

        def keep(outputs: dict[str, Array]) -> None:
            answers.keep(key, outputs)
            take(outputs)

        return keep

    def _form(self, owner: str, tensors: Mapping[str, Array], outputs: Sequence[str]) -> RunForm:
        """Check an owner's request, and find out how it runs."""
        self._signature.check(tensors)
        self._inner.check("output", outputs, inside=self._opens_to(owner))
        return self._forms.of(tensors, outputs)

    def warm_up(self, config: ModelConfig) -> None:
        """Compile a plan for each size of runs, where shapes are known, and run what the model's file asks for.

        Raises:
            MXNetError: the model cannot run so.
        """
        sizes = [1] if self._batcher is None else self._sizes[-KEPT_PLANS:]
        if self._batcher is not None:
            for size in sizes:
                like = known_shapes(self.inputs, self._axis, size)
                if like is not None:
                    names = self._inner.needed(self.default_outputs)
                    with self._plans.running(self._inner.graph_of(names), self._forms.kind(names), like):
                        pass  # it is kept
        for warmup in config.warmup:
            for tensors in warmup_tensors(warmup, self.inputs, self._axis, sizes):
                self._signature.check(tensors)
                self._run_ahead(tensors)

    def _run_ahead(self, tensors: Mapping[str, Array]) -> None:
        """Run the network as for a request, which is nobody's."""
        examples = self._signature.examples(tensors, alike=self._batcher is not None)
        if self._forms.is_alone(examples):
            self._run(self._forms.of(tensors, self.default_outputs), tensors, lambda outputs: None, AnswerLimit())
            return
        nobody = WaitingRequest(
            "", tensors, examples, lambda outputs: None, lambda error: None, self.default_outputs, None, (), 0.0
        )
        self._batches.outputs_of([nobody])

    def backward(
        self,
        owner: str,
        tensors: Mapping[str, Array],
        wanted: Sequence[str] | None,
        take: Callable[[dict[str, Array]], None],
        limit: AnswerLimit,
        *,
        is_train: bool = False,
        seed: int = 0,
    ) -> None:
        """Run the network forward and backward on a request's tensors, which never run together with others.

        Args:
            owner: whose request it is.
            tensors: by input and label, and gradients of outputs or inner values as `head_grad:NAME`. Without any, the
                network's outputs are losses. With one of an inner value, only values that have one are differentiated.
            wanted: `grad:NAME` of inputs and parameters, and outputs; None: the gradients of all inputs.
            take: gets them; they are valid while it runs.
            limit: how large they may be.
            is_train: whether operators run as in training: dropout drops, batch normalisation reads the batch.
            seed: of random operators.

        Raises:
            BadRequestError: a tensor is missing or nobody's; a name is unknown.
            ShapeError: a head gradient or label has another shape than the network wants.
        """
        begun = time.monotonic()
        try:
            if not self._opens_to(owner):
                raise ForbiddenError(
                    "gradients: expected a model that tells you them, got one with inner_values = false"
                    if self._tells_inside is False
                    else "gradients: expected the owner of the model, as they give its parameters away, got another "
                    "caller: the owner may publish it with inner_values = true in its model.toml"
                )
            labels = self._signature.labels
            inputs = {name: tensor for name, tensor in tensors.items() if not name.startswith(HEAD_GRAD)}
            self._signature.check({name: tensor for name, tensor in inputs.items() if name not in labels})
            examples = self._signature.examples(tensors, alike=self._batcher is not None)
            try:
                forms = self._signature.forms(tensors)
                self._gradients.run(tensors, forms, wanted, take, limit, is_train=is_train, seed=seed)
            finally:
                self._spend(owner, time.monotonic() - begun)
        except BaseException:
            self.statistics.failed(time.monotonic() - begun)
            raise
        seconds = time.monotonic() - begun
        self.statistics.succeeded(examples, 0.0, seconds, seconds)

    def _opens_to(self, caller: str) -> bool:
        """Whether a caller may name inner values and gradients, from which the parameters can be computed."""
        if self._tells_inside is None:
            return self.owner in ("", caller)
        return self._tells_inside

    def list_outputs(self, caller: str) -> tuple[list[ServedTensor], list[str], list[str]]:
        """What a caller may name: outputs and inner values, in the graph's order; gradients; and labels for these."""
        entries = self._inner.open_to(self._opens_to(caller)).items()
        rows = [self._signature.value(name, self._graph.entry_id(entry)) for name, entry in entries]
        if not self._opens_to(caller):
            return rows, [], []
        return rows, self._gradients.names(), list(self._signature.labels)

    def _run(
        self,
        form: RunForm,
        tensors: Mapping[str, Array],
        take: Callable[[dict[str, Array]], None],
        limit: AnswerLimit,
    ) -> None:
        """Run the network, or as much of it as the outputs need, on one request's tensors."""
        with self._plans.running(form.graph, form.kind, form.forms) as plan:
            backend: Any = self._backend
            outputs = plan.bound.outputs
            if limit is not NO_LIMIT:
                limit.check("the outputs", [outputs[i] for i in form.wanted])
            for name, array in plan.inputs.items():
                backend.write(array, tensors[name])
            plan.bound.forward(is_train=False, parameters=0)
            take({name: backend.get(outputs[i]) for name, i in zip(form.outputs, form.wanted, strict=True)})

    def run_together(self, entries: Sequence[WaitingRequest]) -> None:
        """See BatchSizes: the requests' examples one behind the other, and zeros behind them up to a size in use."""
        begun = time.monotonic()
        try:
            answers = self._batches.outputs_of(entries)
        except Exception as error:
            for entry in entries:
                entry.fail(error)
            return
        finally:
            ended = time.monotonic()
            total = sum(entry.examples for entry in entries)
            shares: dict[str, float] = {}
            for entry in entries:
                share = entry.examples / total if total else 1 / len(entries)
                shares[entry.owner] = shares.get(entry.owner, 0.0) + share
            for owner, share in shares.items():
                self._spend(owner, (ended - begun) * share)
        self.statistics.ran(total, ended - begun)
        for entry, outputs in zip(entries, answers, strict=True):
            if entry.task is not None and entry.task.stages is not None:
                entry.task.stages.ran(entry.since, begun, ended)
            # Before the answer leaves: its client may ask for the figures.
            self.statistics.succeeded(entry.examples, begun - entry.since, ended - entry.since, ended - begun)
            try:
                entry.take(outputs)
            except Exception as error:
                entry.fail(error)

    @property
    def graph(self) -> Graph:
        """The network."""
        return self._graph

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return self._budget.used

    @property
    def memory_bytes(self) -> int:
        """Bytes of the parameters, and of the plans that are idle."""
        return self._budget.used + self._plans.nbytes

    def close(self) -> None:
        """Give back the memory. Calls that run meanwhile end as they would."""
        self._plans.close()
        self._budget.close()
        if self._answers is not None:
            self._answers.forget(self._number)
        if self._code is not None:
            self._code.close()
