"""SharedRows: which rows of an iterator's arrays servers have, so that a step names rows and does not send them.

Over HTTP a row travels once: with the first batch that it is in, to a dataset of the session (`dataset`, `put_rows`),
from which batches are gathered on the device (`take_rows`). When a pass is over, blocks of rows go into the owner's
store on the server (`keep_rows`). The next program asks that store first.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError, TransportError

from ..session import Session
from .row_source import RowSource

__all__ = ["SharedRows"]

Array = np.ndarray[Any, Any]
MIN_BYTES = 256 << 10
"""Arrays with fewer bytes together travel with each batch: opening a dataset takes two round trips."""
KEPT_PER_STEP = 2
"""Blocks that one step saves in the owner's store, beside its own work."""
KEPT_PER_PASS = 32
"""Blocks that are saved at the end of a pass at once."""
HASHED_BYTES = 16 << 20
"""Arrays up to this size are named by all of their blocks at once; of larger ones the store is asked for the first."""
KNOWN_BLOCKS = 256
"""Number of stored first blocks to remember for a session."""


class SharedRows:
    """The arrays of an iterator, and their datasets in sessions.

    Args:
        sources: the arrays.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self._sources = list(sources)
        self._datasets: dict[str, _SessionRows | None] = {}
        self._suits: bool | None = None
        self._parts: tuple[Any, dict[tuple[int, int], slice | Array]] = (None, {})
        self._pass_ended = True

    def part(self, rows: slice | Array, begin: int, end: int) -> slice | Array:
        """Rows `begin` to before `end` of some rows: the same object for the same part, so that numbers travel once."""
        if isinstance(rows, slice):
            return slice(rows.start + begin, rows.start + end)
        if self._parts[0] is not rows:
            self._parts = rows, {}
        return self._parts[1].setdefault((begin, end), rows[begin:end])

    def can_feed(self, session: Session, source: RowSource, dtype: Any) -> bool:
        """Return whether a session takes rows of a source by their numbers, as an array of this type."""
        if session.in_process or not self._wanted():
            return False
        if np.dtype(dtype) != source.dtype and (source.scale != 1.0 or np.dtype(dtype).kind in "biu"):
            return False  # a cast that devices do each in their own way, or of what was scaled in another type
        return self._of(session) is not None

    def take(self, session: Session, source: RowSource, rows: slice | Array, target: int, dtype: Any = None) -> None:
        """Record that rows go into the array `target`, a new one of type `dtype` if it does not exist.

        Rows that the session does not have yet travel with this.
        """
        datasets = self._of(session)
        assert datasets is not None
        self._pass_ended = False
        home = session.views[0]
        if session.device == home.device:
            datasets.take(session, source, rows, target, dtype)
            return
        number = home.new_id()
        datasets.take(home, source, rows, number, None if source.stored_dtype == source.dtype else source.dtype)
        session.record({"do": "copy", "from": number, "to": target})
        home.free(number)

    def end_pass(self) -> None:
        """Save what sessions have of the rows in their owners' stores: another pass, or another program, may come.

        A pass ends with its last batch, and with a reset: the second of the two does nothing.
        """
        if self._pass_ended:
            return
        self._pass_ended = True
        for datasets in self._datasets.values():
            if datasets is not None:
                with contextlib.suppress(MXNetError):  # the session has ended
                    datasets.end_pass()

    def _wanted(self) -> bool:
        if self._suits is None:
            nbytes = sum(source.nbytes for source in self._sources)
            named = any(source.is_named for source in self._sources)
            self._suits = (
                os.environ.get("OPBOX_DATASETS") != "0"
                and (named or nbytes >= MIN_BYTES)
                and all(source.travels for source in self._sources)
            )
        return self._suits

    def _of(self, session: Session) -> _SessionRows | None:
        """The datasets in a session, on its first device, opened now if they were not; None where it takes none."""
        key, session = session.id, session.views[0]
        if key in self._datasets:
            datasets = self._datasets[key]
            if datasets is None or datasets.failures == session.failures:
                return datasets
            datasets.free()  # a batch failed, and perhaps the rows in it: begin again, with what the store has
        self._datasets = {known: one for known, one in self._datasets.items() if one is None or one.is_open}
        self._datasets[key] = _open(session, self._sources)
        return self._datasets[key]


class _SessionRows:
    """The datasets of an iterator's arrays in one session.

    Args:
        session: on one of its devices.
        sources: the arrays.
        ids: the datasets' numbers.
        missing: for each dataset, the numbers of the blocks that its owner's store lacks.
    """

    def __init__(
        self, session: Session, sources: Sequence[RowSource], ids: Sequence[int], missing: Sequence[Sequence[int]]
    ) -> None:
        self._session = session
        self._id = session.id
        self.failures = session.failures
        self._of = {
            id(source): _Dataset(source, number, blocks)
            for source, number, blocks in zip(sources, ids, missing, strict=True)
        }
        self.free = weakref.finalize(self, _free, session, list(ids))
        self.free.atexit = False
        self._passes = 0

    @property
    def is_open(self) -> bool:
        """Whether the session is still there."""
        return self._session.id == self._id

    def take(self, session: Session, source: RowSource, rows: slice | Array, target: int, dtype: Any) -> None:
        """See SharedRows."""
        dataset = self._of[id(source)]
        dataset.bring(session, rows)
        if self._passes:
            dataset.keep(session, KEPT_PER_STEP)
        dataset.take(session, rows, target, dtype)

    def end_pass(self) -> None:
        """See SharedRows."""
        if self.is_open and self._session.failures == self.failures:
            self._passes += 1
            if any(dataset.is_unkept for dataset in self._of.values()):
                self._session.flush()  # the values of the last step do not wait for the saving
            for dataset in self._of.values():
                dataset.keep(self._session, KEPT_PER_PASS)


class _Dataset:
    """One array as a dataset of a session.

    Args:
        source: the array.
        id: the dataset's number in the session.
        missing: the blocks that are yet to come.
    """

    def __init__(self, source: RowSource, id: int, missing: Sequence[int]) -> None:
        self._source = source
        self._id = id
        self._here = np.ones(source.shape[0], bool)
        for number in missing:
            self._here[self._rows_of(number)] = False
        self._complete = not missing
        self._unkept = sorted(missing, reverse=True)
        self._index_type = np.min_scalar_type(max(0, source.shape[0] - 1))

    @property
    def is_unkept(self) -> bool:
        """Whether the store lacks some of its blocks."""
        return bool(self._unkept)

    def _rows_of(self, block: int) -> slice:
        return slice(block * self._source.block_rows, (block + 1) * self._source.block_rows)

    def bring(self, session: Session, rows: slice | Array) -> None:
        """Record the sending of those rows that the session lacks."""
        if self._complete:
            return
        here = self._here[rows]
        if here.all():
            return
        if isinstance(rows, slice) and not here.any():
            session.record({"do": "put_rows", "id": self._id, "begin": rows.start}, self._source.stored_rows(rows))
        else:
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            new = np.unique(numbers[~here])
            same = len(new) == len(numbers)  # in another order: then one tensor of numbers does for both commands
            index = self._numbers(rows if same and not isinstance(rows, slice) else new)
            values = self._source.stored_rows(index)
            session.record({"do": "put_rows", "id": self._id, "rows": index}, values)  # type: ignore[typeddict-item]
        self._here[rows] = True
        self._complete = bool(self._here.all())

    def take(self, session: Session, rows: slice | Array, target: int, dtype: Any) -> None:
        """Record the gathering of rows."""
        command: dict[str, Any] = {"do": "take_rows", "id": target, "of": self._id}
        if isinstance(rows, slice):
            command |= {"begin": rows.start, "end": rows.stop}
        else:
            command["rows"] = self._numbers(rows)
        if dtype is not None:
            command["dtype"] = np.dtype(dtype).name
        if self._source.scale != 1.0:
            command["scale"] = self._source.scale
        session.record(command)  # type: ignore[arg-type]  # a TakeRows, with its tensor in the name's place

    def keep(self, session: Session, most: int) -> None:
        """Record the saving of up to `most` blocks that are whole and that the store lacked."""
        blocks: list[int] = []
        for number in reversed(self._unkept):
            if len(blocks) == most:
                break
            if self._complete or self._here[self._rows_of(number)].all():
                blocks.append(number)
        if blocks:
            self._unkept = [number for number in self._unkept if number not in blocks]
            rows = self._source.block_rows
            session.record({"do": "keep_rows", "id": self._id, "block_rows": rows, "blocks": blocks})
            if 0 in blocks:
                _stored.setdefault(session.id, deque(maxlen=KNOWN_BLOCKS)).append(self._source.first_block)

    def _numbers(self, rows: Array) -> Array:
        """Row numbers in the smallest type; the same object for the same rows, so that they travel once."""
        return _packed(rows, self._index_type)


_stored: dict[str, deque[str]] = {}
"""By session, first blocks that its owner's store has: an iterator over the same rows need not ask for them."""
_last: tuple[Array | None, Array | None] = (None, None)


def _packed(rows: Array, dtype: Any) -> Array:
    global _last
    of, packed = _last
    if of is not rows or packed is None or packed.dtype != dtype:
        packed = rows.astype(dtype)
        _last = rows, packed
    return packed


def _open(session: Session, sources: Sequence[RowSource]) -> _SessionRows | None:
    """Open datasets for arrays, filled with what the owner's store has; None where the server takes none."""
    own = [source for source in sources if not source.is_named]
    if sum(source.nbytes for source in own) > session.dataset_bytes:
        return None
    session.flush()
    for source in own:
        source.freeze()
    known = set(_stored.get(session.id, ()))
    known |= {source.first_block for source in own if source.nbytes <= HASHED_BYTES}
    if first := [source.first_block for source in own if source.first_block not in known]:
        try:
            missing_blocks = session.call("POST", routes.BLOCKS, {"blocks": first})["missing"]
        except TransportError:
            raise
        except MXNetError:  # no store, or none for this token
            return None
        there = [block for position, block in enumerate(first) if position not in missing_blocks]
        known.update(there)
        _stored.setdefault(session.id, deque(maxlen=KNOWN_BLOCKS)).extend(there)
    ids = [session.new_id() for _ in sources]
    commands = [
        source.opening(number, not source.is_named and source.first_block in known)
        for number, source in zip(ids, sources, strict=True)
    ]
    failures = session.failures
    try:
        results = session.ask_all(commands)
    except MXNetError as error:
        if not error.message.startswith("dataset "):
            raise
        session.failures = failures  # it is this batch that failed, and nothing else was in it
        _free(session, ids)
        return None
    missing = [
        result["missing"] if source.is_named or command.get("blocks") else list(range(source.block_count))
        for result, command, source in zip(results, commands, sources, strict=True)
    ]
    return _SessionRows(session, sources, ids, missing)


def _free(session: Session, ids: Sequence[int]) -> None:
    for number in ids:
        session.free(number)
