"""Iterators around iterators: epochs of a chosen length, and loading ahead in threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from opbox_protocol.signal_shield import shielded

from ..base import value_text
from ..forks import AfterFork
from ..freed import Freed
from ..gate import Gate
from .desc import DataBatch, DataDesc, DataIter

__all__ = ["PrefetchingIter", "ResizeIter"]


def _check_source(argument: str, source: Any, attribute: str) -> None:
    """TypeError unless what an iterator reads has an attribute that iterators have."""
    if not hasattr(source, attribute):
        raise TypeError(f"{argument}: expected a DataIter such as mx.io.NDArrayIter, got {value_text(source)}")


class ResizeIter(DataIter):
    """An epoch of exactly `size` batches, whatever the length of `data_iter`'s, which starts anew when it ends.

    Args:
        data_iter: the iterator underneath.
        size: batches of one epoch.
        reset_internal: whether `reset` also resets `data_iter`.
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        _check_source("ResizeIter: data_iter", data_iter, "batch_size")
        super().__init__(data_iter.batch_size)
        self.data_iter = data_iter
        self.size = size
        self.reset_internal = reset_internal
        self.cur = 0
        self.current_batch: DataBatch | None = None
        self.provide_data = data_iter.provide_data
        self.provide_label = data_iter.provide_label
        if hasattr(data_iter, "default_bucket_key"):
            self.default_bucket_key = data_iter.default_bucket_key

    def reset(self) -> None:
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def iter_next(self) -> bool:
        if self.cur == self.size:
            return False
        try:
            self.current_batch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            self.current_batch = self.data_iter.next()
        self.cur += 1
        return True

    def _current(self) -> DataBatch:
        if self.current_batch is None:
            raise AssertionError("no batch yet: call iter_next() first")
        return self.current_batch

    def getdata(self) -> Any:
        return self._current().data

    def getlabel(self) -> Any:
        return self._current().label

    def getindex(self) -> Any:
        return self._current().index

    def getpad(self) -> int | None:
        return self._current().pad


class _Coming:
    """A batch that a thread loads: what has come, an exception, or None at the end of the epoch."""

    __slots__ = ("arrived", "item")

    def __init__(self) -> None:
        self.arrived = Gate()
        self.item: DataBatch | BaseException | None = None


class _Ahead(Freed, AfterFork):
    """A thread that keeps one batch of an iterator ready, until this object is gone.

    Attributes:
        coming: the next batch; looking at it takes nothing away, so that an interrupt loses none.
    """

    def __init__(self, source: DataIter) -> None:
        AfterFork.__init__(self)
        self.source = source
        self._begin()
        self.ask()
        shielded(self._start)

    def _begin(self) -> None:
        self._asked: queue.SimpleQueue[_Coming | None] = queue.SimpleQueue()
        self._loads = False
        self.__del__ = partial(self._asked.put, None)

    def ask(self) -> None:
        """Start loading the next batch."""
        coming = _Coming()
        self._asked.put(coming)
        self.coming = coming

    def wait(self) -> None:
        """Wait until the batch is there."""
        shielded(self._start)
        self.coming.arrived.wait()

    def _start(self) -> None:
        if not self._loads:
            self._loads = True
            threading.Thread(target=_load, args=(self.source, self._asked), daemon=True, name="opbox-prefetch").start()

    def become_childs(self) -> None:
        """Load by a thread of this process: that of the parent is not here."""
        self._begin()
        if not self.coming.arrived.is_open:
            self._asked.put(self.coming)


def _load(source: DataIter, asked: queue.SimpleQueue[_Coming | None]) -> None:
    while (coming := asked.get()) is not None:
        try:
            coming.item = source.next()
        except StopIteration:
            pass
        except BaseException as error:  # handed to whoever takes the batch
            coming.item = error
        coming.arrived.open()
        del coming


class PrefetchingIter(DataIter):
    """Load the next batch in a thread while the current one is in use; several iterators are joined into one.

    Args:
        iters: an iterator, or several of equal length whose data and labels are put side by side.
        rename_data, rename_label: for each iterator, new names by old ones.

    Raises (from `next`): whatever an iterator raises in its thread.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[Mapping[str, str]] | None = None,
        rename_label: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self.iters: list[DataIter] = [iters] if isinstance(iters, DataIter) else list(iters)
        if not self.iters:
            raise AssertionError("iters: expected at least one iterator")
        for source in self.iters:
            _check_source("PrefetchingIter: iters", source, "provide_data")
        self.n_iter = len(self.iters)
        self.rename_data = rename_data
        self.rename_label = rename_label
        super().__init__(self.provide_data[0][1][0])
        self.current_batch: DataBatch | None = None
        self._ahead = [_Ahead(one) for one in self.iters]

    def _provided(self, which: str, renames: Sequence[Mapping[str, str]] | None) -> list[Any]:
        joined: list[Any] = []
        for position, one in enumerate(self.iters):
            for desc in getattr(one, which):
                if renames is None:
                    joined.append(desc)
                elif isinstance(desc, DataDesc):
                    joined.append(DataDesc(renames[position][desc.name], desc.shape, desc.dtype))
                else:
                    joined.append(DataDesc(*desc))
        return joined

    @property
    def provide_data(self) -> list[Any]:
        """Names and shapes of the data of a batch, of all iterators."""
        return self._provided("provide_data", self.rename_data)

    @property
    def provide_label(self) -> list[Any]:
        """Names and shapes of the labels of a batch, of all iterators."""
        return self._provided("provide_label", self.rename_label)

    def reset(self) -> None:
        for ahead in self._ahead:
            ahead.wait()  # the batch loaded ahead belongs to the old epoch
        shielded(self._begin_epoch)

    def _begin_epoch(self) -> None:
        for one in self.iters:
            one.reset()
        for ahead in self._ahead:
            ahead.ask()

    def iter_next(self) -> bool:
        for ahead in self._ahead:
            ahead.wait()
        items = [ahead.coming.item for ahead in self._ahead]
        for one in items:
            if isinstance(one, BaseException):
                shielded(self._ask_all)
                raise one
        ended = [one is None for one in items]
        if any(ended):  # the end stays the end until reset
            if not all(ended):
                first = ended.index(True)
                raise AssertionError(
                    f"PrefetchingIter: iterator {first} ended before the others: give equally many batches"
                )
            return False
        batches = [one for one in items if isinstance(one, DataBatch)]
        if any(batch.pad != batches[0].pad for batch in batches):
            raise AssertionError(
                f"PrefetchingIter: expected one padding in all iterators, got {[b.pad for b in batches]}"
            )
        batch = DataBatch(
            [array for batch in batches for array in batch.data or ()],
            [array for batch in batches for array in batch.label or ()],
            batches[0].pad,
            batches[0].index,
            provide_data=self.provide_data,
            provide_label=self.provide_label,
        )
        shielded(self._take, batch)
        return True

    def _take(self, batch: DataBatch) -> None:
        self.current_batch = batch
        self._ask_all()

    def _ask_all(self) -> None:
        for ahead in self._ahead:
            ahead.ask()

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        assert self.current_batch is not None
        return self.current_batch

    def getdata(self) -> Any:
        return self.current_batch.data if self.current_batch else None

    def getlabel(self) -> Any:
        return self.current_batch.label if self.current_batch else None

    def getindex(self) -> Any:
        return self.current_batch.index if self.current_batch else None

    def getpad(self) -> int | None:
        return self.current_batch.pad if self.current_batch else None
