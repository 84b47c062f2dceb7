"""The updater: an optimizer with its states, called with weights and gradients; and how the states are saved.

States are saved as a frame of the wire format behind its header's length, a JSON header that says which tensor belongs
where, and the tensors. Nothing is pickled, so a states file can be read without trust in who wrote it; MXNet's own
(pickled) states files are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_protocol import wire
from opbox_protocol.errors import MXNetError
from opbox_protocol.signal_shield import whole

from .. import ndarray as nd
from ..ndarray import NDArray
from .optimizer import Index, OperatorUpdate, Optimizer, State, create

__all__ = ["Updater", "get_updater"]

MAGIC = b"opboxst1"
_LENGTH = struct.Struct("<Q")
_FORMAT = "optimizer states"


class Updater:
    """An optimizer and the states of the weights it updates.

    Example:
        >>> updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", momentum=0.9))
        >>> updater(0, gradient, weight)
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Index, State] = {}

    @whole
    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update one weight, or lists of them: all that go by operators in one command."""
        if not isinstance(index, (list, tuple)):
            index, grad, weight = [index], [grad], [weight]
        optimizer = self.optimizer
        calls: list[OperatorUpdate] = []
        for one, gradient, array in zip(index, grad, weight, strict=True):
            key = one.decode() if isinstance(one, bytes) else one
            if key not in self.states:
                self.states[key] = optimizer.create_state_multi_precision(key, array)
            if optimizer._has_copy(array):
                optimizer.update_multi_precision(key, array, gradient, self.states[key])
                continue
            call = optimizer.step(key, array, gradient, self.states[key])
            if call is None:
                optimizer.update_multi_precision(key, array, gradient, self.states[key])
            else:
                calls.append(call)
        if calls:
            nd.invoke_update(calls)

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """The states as bytes; with `dump_optimizer` the optimizer's kind, numbers and counts too."""
        tensors: dict[str, np.ndarray[Any, Any]] = {}
        states = [[key, _described(state, tensors)] for key, state in self.states.items()]
        header: dict[str, Any] = {"format": _FORMAT, "states": states}
        if dump_optimizer:
            header["optimizer"] = _optimizer_description(self.optimizer)
        head, buffers = wire.encode(header, tensors, key="inputs")
        return b"".join([MAGIC, _LENGTH.pack(len(head)), head, *buffers])

    def set_states(self, states: bytes) -> None:
        """Take over what `get_states` returned.

        Raises:
            MXNetError: the bytes are something else.
        """
        start = len(MAGIC) + _LENGTH.size
        if not states.startswith(MAGIC) or len(states) < start:
            raise MXNetError(
                "optimizer states: expected what Updater.get_states wrote, got other bytes; "
                "states that MXNet pickled are not read"
            )
        (length,) = _LENGTH.unpack_from(states, len(MAGIC))
        frame = wire.decode(memoryview(states)[start:], length)
        header = frame.header
        if header.get("format") != _FORMAT:
            raise MXNetError(f"optimizer states: expected format {_FORMAT!r}, got {header.get('format')!r}")
        self.states = {key: _restored(description, frame.tensors) for key, description in header["states"]}
        if "optimizer" in header:
            self.optimizer = _restored_optimizer(header["optimizer"], self.optimizer)


def _described(state: State, tensors: dict[str, np.ndarray[Any, Any]]) -> Any:
    """A state as JSON: null, a tensor's name, or a list; its arrays go into `tensors`."""
    if state is None:
        return None
    if isinstance(state, NDArray):
        name = str(len(tensors))
        tensors[name] = state.asnumpy()
        return name
    if isinstance(state, (list, tuple)):
        return [_described(one, tensors) for one in state]
    raise MXNetError(f"optimizer states: expected arrays, tuples and None, got {type(state).__name__}")


def _restored(description: Any, tensors: dict[str, np.ndarray[Any, Any]]) -> State:
    if description is None:
        return None
    if isinstance(description, str):
        return nd.array(tensors[description], dtype=tensors[description].dtype)
    return tuple(_restored(one, tensors) for one in description)


def _optimizer_description(optimizer: Optimizer) -> dict[str, Any]:
    """The numbers, strings and flags of an optimizer, and its counts; a scheduler's too."""
    settings = _plain(optimizer)
    settings["idx2name"] = list(optimizer.idx2name.items())
    settings["lr_mult"] = list(optimizer.lr_mult.items())
    settings["wd_mult"] = list(optimizer.wd_mult.items())
    counts = list(optimizer._index_update_count.items())
    description: dict[str, Any] = {"name": type(optimizer).__name__.lower(), "facts": settings, "counts": counts}
    if optimizer.lr_scheduler is not None:
        description["scheduler"] = _plain(optimizer.lr_scheduler)
    return description


def _plain(thing: Any) -> dict[str, Any]:
    simple = (bool, int, float, str, type(None))
    return {name: value for name, value in vars(thing).items() if isinstance(value, simple)}


def _restored_optimizer(saved: dict[str, Any], current: Optimizer) -> Optimizer:
    """The optimizer that was dumped; the scheduler is the current one, set to where the dumped one was."""
    optimizer = current
    if type(current).__name__.lower() != saved["name"]:
        optimizer = create(saved["name"])
    settings = dict(saved["facts"])
    for pairs in ("idx2name", "lr_mult", "wd_mult"):
        setattr(optimizer, pairs, dict(_as_pairs(settings.pop(pairs))))
    settings.pop("lr_scheduler", None)
    for name, value in settings.items():
        setattr(optimizer, name, value)
    optimizer._index_update_count = dict(_as_pairs(saved["counts"]))
    if "scheduler" in saved and optimizer.lr_scheduler is not None:
        for name, value in saved["scheduler"].items():
            setattr(optimizer.lr_scheduler, name, value)
    return optimizer


def _as_pairs(pairs: Sequence[Sequence[Any]]) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in pairs]


def get_updater(optimizer: Optimizer) -> Updater:
    """An updater for an optimizer."""
    return Updater(optimizer)
