"""A module's training that outlives the loss of its session: what is saved of it, and how its optimizer goes back."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from opbox_protocol.errors import MXNetError

from ..kvstore import KVStore
from ..ndarray import NDArray
from ..recovery import Recovery
from .nan_watch import OutputWatch
from .repeated_steps import RepeatedSteps, can_repeat

__all__ = ["TrainingRecovery", "attempt"]

T = TypeVar("T")
RECENT = 64
"""Number of recent steps whose counts are kept, as a stopping server saves between checkpoints."""


def attempt(recovery: TrainingRecovery | None, work: Callable[[], T]) -> T:
    """The result of `work`, done again from the last checkpoint when the session is lost meanwhile."""
    while True:
        try:
            return work()
        except MXNetError as error:
            if recovery is None:
                raise
            recovery.recover(error)


class TrainingRecovery:
    """Saves parameters, auxiliary states, the optimizer's states and the random source every so many steps.

    Args:
        module: a bound `Module` or `BucketingModule`.
        name, every: as of `Recovery`.
        metric: the training metric: what it has not been told of yet, it may lose.
        watch: of the outputs, of which some may be lost too.

    Raises:
        AssertionError: another kind of module.
    """

    def __init__(self, module: Any, name: str, every: int, metric: Any, watch: OutputWatch) -> None:
        if not hasattr(module, "_parts"):
            raise AssertionError(
                f"fit: checkpoint_every: expected a Module or a BucketingModule, got {type(module).__name__}: "
                "leave it out"
            )
        self._module = module
        self._metric, self._watched_outputs = metric, watch
        self._recovery = Recovery(name, every, module.logger)
        self._watched: tuple[int, int] | None = None
        self._saved: deque[tuple[int, Any]] = deque(maxlen=3)
        self._recent: deque[tuple[int, Any]] = deque(maxlen=RECENT)
        self._anchor = self._begun = 0
        self._steps = RepeatedSteps()
        self._batch: Any = None
        self._counted = False
        self._watch()
        self._remember()

    @property
    def _training(self) -> Any:
        return self._module._parts()[0]._trained

    def step(self) -> None:
        """A step has been recorded."""
        if self._signature() != self._watched:
            self._watch()
        self._recovery.step()
        self._remember()

    def _signature(self) -> tuple[int, int]:
        """Return a value that changes when executors, or states of the optimizer, are added."""
        bound = sum(len(replica) for part in self._module._parts() for replica in part._bound.replicas)
        return bound, len(self._training.updater.states)

    def _watch(self) -> None:
        self._watched = self._signature()
        arrays: dict[str, NDArray] = {}
        executors: list[Any] = []
        for part in self._module._parts():
            for number, bound in enumerate(part._bound.replicas):
                device = number or ""
                arrays |= {f"arg{device}:{name}": array for name, array in bound.args.items()}
                arrays |= {f"aux{device}:{name}": array for name, array in bound.aux.items()}
                executors += bound.all()
        store = self._training.store
        if self._training.on_store and isinstance(store, KVStore):
            arrays |= {f"store:{key}": array for key, array in store._values.items()}
        for key, state in self._training.updater.states.items():
            arrays |= {f"{_state_name(key)}:{place}": array for place, array in enumerate(_arrays(state))}
        self._recovery.watch(arrays, executors)

    def _remember(self) -> None:
        """Keep the optimizer's counts of this step, which a checkpoint of it goes back to."""
        steps = self._recovery.steps
        row = (steps, _counts(self._training.optimizer))
        self._recent.append(row)
        if (steps - self._anchor) % self._recovery.every == 0:
            self._saved.append(row)

    def begin(self, batch: Any) -> None:
        """A step with this batch begins."""
        self._begun, self._batch, self._counted = self._recovery.steps + 1, batch, False

    def count(self) -> None:
        """The metric is told of the step."""
        self._counted = True

    def end(self) -> None:
        """The step is at its end, and what it does is recorded."""
        self._steps.add(self._begun, self._batch, self._recovery.saved)
        self._batch = None

    def recover(self, error: MXNetError) -> tuple[bool, bool]:
        """Continue from the last checkpoint: run the steps behind it again, where their batches are still here.

        Otherwise they are lost, and so is the step in progress; see `Recovery.recover`.

        Returns:
            Whether the step in progress is to be run again, and whether the metric is to be told of it then.
        """
        while True:
            try:
                return self._recover(error)
            except MXNetError as another:
                if not self._recovery.lost:
                    raise
                error = another

    def _recover(self, error: MXNetError) -> tuple[bool, bool]:
        begun, recovery = self._batch is not None, self._recovery
        last = self._begun - 1 if begun else recovery.steps
        batches: list[Any] | None = None

        def repeats(step: int) -> bool:
            nonlocal batches
            self._steps.begin(step)
            behind = self._steps.behind(step, max(step, last))
            batches = None if begun and not can_repeat(self._batch) else behind
            return batches is not None

        _, names = recovery.recover(error, max(0, self._begun - recovery.steps) if begun else 0, repeats)
        self._go_back(names)
        self._watched_outputs.drop()
        losses = self._metric.drop_lost()
        if batches is None:
            self._steps.forget(recovery.steps)
            return False, False
        again = begun and self._begun > recovery.steps
        replicas = len(self._module._parts()[0]._bound.replicas)
        owed = [(metric, number // replicas) for metric, number in losses]
        counts = not self._counted or any(number for _, number in owed)
        if begun and self._counted:
            owed = [(metric, number - 1) for metric, number in owed]
        for position, batch in enumerate(batches):
            self._module.forward_backward(batch)
            self._module.update()
            self.step()
            for metric, number in owed:
                if position >= len(batches) - number:
                    self._module.update_metric(metric, batch.label)
            self._module._flush()
        return again, counts

    def _go_back(self, names: frozenset[str]) -> None:
        """Have the optimizer where it was at the checkpoint."""
        steps = self._anchor = self._recovery.steps
        training, updater = self._training, self._training.updater
        for key in list(updater.states):
            # States that the checkpoint is older than begin anew, as they did then.
            if any(f"{_state_name(key)}:{place}" not in names for place, _ in enumerate(_arrays(updater.states[key]))):
                del updater.states[key]
        counts = dict([*self._saved, *self._recent]).get(steps)
        if counts is None:
            raise MXNetError(f"fit: the checkpoint of step {steps} is another training's: give it a name of its own")
        _restore(training.optimizer, counts)
        for rows in (self._saved, self._recent):
            while rows and rows[-1][0] > steps:
                rows.pop()
        self._watched = None  # tells the server of the arrays again, with the next step
        self._module._parts()[0]._bound.executors.writes.value += 1


def _state_name(key: Any) -> str:
    return f"state:{key}"


def _arrays(state: Any) -> Iterator[NDArray]:
    """The arrays of an optimizer's state: none, one, or those of nested tuples."""
    if isinstance(state, NDArray):
        yield state
    elif isinstance(state, (list, tuple)):
        for part in state:
            yield from _arrays(part)


def _counts(optimizer: Any) -> tuple[dict[str, Any], dict[Any, int], dict[str, Any] | None]:
    """The numbers of an optimizer and of its scheduler, and how often each parameter has been updated."""
    scheduler = optimizer.lr_scheduler
    own = None if scheduler is None else copy.copy(vars(scheduler))
    return _numbers(optimizer), dict(optimizer._index_update_count), own


def _numbers(optimizer: Any) -> dict[str, Any]:
    simple = (bool, int, float)
    return {name: value for name, value in vars(optimizer).items() if isinstance(value, simple)}


def _restore(optimizer: Any, counts: tuple[dict[str, Any], dict[Any, int], dict[str, Any] | None]) -> None:
    numbers, updates, scheduler = counts
    vars(optimizer).update(numbers)
    optimizer._index_update_count.clear()
    optimizer._index_update_count.update(updates)
    if scheduler is not None:
        vars(optimizer.lr_scheduler).update(scheduler)
