"""The updater: an optimizer with its states, called with weights and gradients; and how the states are saved.

States are saved as MXNet saves them, pickled, and both read what the other has written. Reading runs nothing that a
file names (`pickles`). Files of opbox before that, a frame of the wire format behind its header's length, are read too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from opbox_protocol import wire
from opbox_protocol.errors import MXNetError
from opbox_protocol.signal_shield import whole

from .. import lr_scheduler
from .. import ndarray as nd
from ..base import value_text
from ..context import Context
from ..ndarray import NDArray
from . import pickles
from .gradient_descent import NAG, SGD
from .large_batch import LARS
from .mixed_precision import invoke_updates
from .optimizer import Index, OperatorUpdate, Optimizer, State, create
from .pickles import Described

__all__ = ["Updater", "get_updater"]

MAGIC = b"opboxst1"
_LENGTH = struct.Struct("<Q")
_FORMAT = "optimizer states"
_OPTIMIZERS, _SCHEDULERS = "mxnet.optimizer.optimizer", "mxnet.lr_scheduler"
"""MXNet's modules, by which its pickles name classes."""
_SWAPPED = (SGD, NAG, LARS)
"""Optimizers whose pair of a float32 copy and its state MXNet has in the other order."""
_TOGETHER = {"SGD": 4, "ccSGD": 4, "LARS": 4, "LAMB": 45}
"""Number of weights that MXNet's optimizer updates at once; 0 for none."""
_MXNETS: dict[str, dict[str, Any]] = {
    "LBSGD": {"lbmult": 1, "cumgrads": {}, "adaptive": False, "admult": 1},
    "LARS": {"skip": 0},
    "DCASGD": {"weight_previous": {}},
}
"""Attributes of MXNet's optimizers that opbox ignores."""


class Updater:
    """An optimizer and the states of the weights it updates.

    Example:
        >>> updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", momentum=0.9))
        >>> updater(0, gradient, weight)
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Index, State] = {}
        self.states_synced: dict[Index, bool] = {}

    @whole
    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update one weight, or lists of them: all that go by operators in one command."""
        if not isinstance(index, (list, tuple)):
            index, grad, weight = [index], [grad], [weight]
        optimizer = self.optimizer
        calls: list[OperatorUpdate] = []
        on_copies: list[tuple[NDArray, OperatorUpdate]] = []
        for one, gradient, array in zip(index, grad, weight, strict=True):
            key = one.decode() if isinstance(one, bytes) else one
            if key not in self.states:
                self.states[key] = optimizer.create_state_multi_precision(key, array)
                self.states_synced[key] = True
            elif not self.states_synced.get(key, True):
                self.states[key] = self.sync_state_context(self.states[key], array.context)
                self.states_synced[key] = True
            mixed, state = optimizer._has_copy(array), self.states[key]
            if mixed and type(optimizer).update_multi_precision is not Optimizer.update_multi_precision:
                call = None
            else:
                call = optimizer.step(key, *((state[0], gradient, state[1]) if mixed else (array, gradient, state)))
            if call is None:
                optimizer.update_multi_precision(key, array, gradient, state)
            elif mixed:
                on_copies.append((array, call))
            else:
                calls.append(call)
        invoke_updates(calls, on_copies)

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """The states as MXNet pickles them; with `dump_optimizer` the optimizer, its counts and its scheduler too."""
        values = {key: self._in_mxnets_order(_fetched(state)) for key, state in self.states.items()}
        return pickles.dumps((values, _described(self.optimizer)) if dump_optimizer else values)

    def set_states(self, states: bytes) -> None:
        """Take over what `get_states` returned, here or in MXNet; the optimizer too, if it is there.

        Raises:
            MXNetError: the bytes are something else.
        """
        if not isinstance(states, (bytes, bytearray, memoryview)):
            raise TypeError(f"optimizer states: expected bytes, got {value_text(states)}")
        raw = bytes(states)
        if raw.startswith(MAGIC):
            values, description = _of_frame(raw)
        else:
            value = pickles.loads(raw, _own_classes(self.optimizer))
            values, description = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        if not isinstance(values, dict) or not all(isinstance(key, (int, str)) for key in values):
            raise MXNetError(f"optimizer states: expected a state for each weight's index, got {value_text(values)}")
        for state in values.values():
            _check_state(state)
        optimizer = self.optimizer if description is None else _restored_optimizer(description, self.optimizer)
        swapped = not raw.startswith(MAGIC)
        restored = {key: _sent(self._in_mxnets_order(v, optimizer) if swapped else v) for key, v in values.items()}
        self.optimizer, self.states = optimizer, restored
        self.states_synced = dict.fromkeys(restored, False)

    def sync_state_context(self, state: State, context: Context) -> State:
        """The state with its arrays on `context`."""
        if isinstance(state, NDArray):
            return state.as_in_context(context)
        if isinstance(state, (list, tuple)):
            return type(state)(self.sync_state_context(part, context) for part in state)
        return state

    def _in_mxnets_order(self, state: Any, optimizer: Optimizer | None = None) -> Any:
        """The state with the pair of a float32 copy and its state turned round, if MXNet has it so; and back again."""
        swapped = isinstance(optimizer or self.optimizer, _SWAPPED) and isinstance(state, tuple) and len(state) == 2
        return (state[1], state[0]) if swapped else state


def _fetched(state: State) -> Any:
    """A state with numpy's arrays for the engine's."""
    if isinstance(state, NDArray):
        return state.asnumpy()
    if isinstance(state, (list, tuple)):
        return tuple(_fetched(part) for part in state)
    if state is None:
        return None
    raise MXNetError(f"optimizer states: expected arrays, tuples and None, got {type(state).__name__}")


def _sent(state: Any) -> State:
    """A state with the engine's arrays for numpy's."""
    if isinstance(state, (list, tuple)):
        return tuple(_sent(part) for part in state)
    return None if state is None else nd.array(state, dtype=state.dtype)


def _check_state(state: Any) -> None:
    """Raise MXNetError unless a state is made of arrays, tuples and None: before anything of a file is taken over."""
    if isinstance(state, (list, tuple)):
        for part in state:
            _check_state(part)
    elif state is not None and not hasattr(state, "dtype"):
        raise MXNetError(f"optimizer states: expected arrays, tuples and None, got {type(state).__name__}")


def _of_frame(raw: bytes) -> tuple[Any, Any]:
    """The states and the optimizer of a file in opbox's former format."""
    start = len(MAGIC) + _LENGTH.size
    if len(raw) < start:
        raise MXNetError(f"optimizer states: expected {start} bytes and more, got {len(raw)}: the file is cut off")
    try:
        frame = wire.decode(memoryview(raw)[start:], *_LENGTH.unpack_from(raw, len(MAGIC)))
        if frame.header.get("format") != _FORMAT:
            raise MXNetError(f"expected format {_FORMAT!r}, got {value_text(frame.header.get('format'))}")
        return _of_header(frame.header, frame.tensors)
    except MXNetError as error:
        error.reword(f"optimizer states: {error.message}")
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise MXNetError(
            f"optimizer states: expected a header of states and an optimizer, got another ({type(error).__name__}: "
            f"{error})"
        ) from None


def _of_header(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[Any, Any]:
    """The states and the optimizer of a frame; whatever a wrong type raises."""

    def restored(description: Any) -> Any:
        if description is None:
            return None
        if isinstance(description, str):
            return tensors[description]
        return tuple(restored(one) for one in description)

    saved = header.get("optimizer")
    if saved is not None:
        pairs = {name: dict(saved["facts"][name]) for name in ("idx2name", "lr_mult", "wd_mult")}
        values = {**saved["facts"], **pairs, "_index_update_count": dict(saved["counts"])}
        values["lr_scheduler"] = Described("", "", saved["scheduler"]) if "scheduler" in saved else None
        saved = Described(_OPTIMIZERS, saved["name"], values)
    return {key: restored(description) for key, description in header["states"]}, saved


def _own_classes(optimizer: Optimizer) -> set[tuple[str, str]]:
    """The user's own classes that a file of states may name: optimizers that are registered, and the scheduler's."""
    classes = {type(optimizer), *Optimizer.opt_registry.values()}
    named = {(one.__module__, one.__qualname__) for one in classes}
    scheduler = type(optimizer.lr_scheduler)
    return named | {(scheduler.__module__, scheduler.__qualname__)}


def _described(optimizer: Optimizer) -> Described:
    """An optimizer with what MXNet's of the same name has."""
    name, values = type(optimizer).__name__, _simple(optimizer)
    counts = dict(optimizer._index_update_count)
    scheduler = optimizer.lr_scheduler
    if scheduler is not None:
        scheduler = _object(scheduler, _SCHEDULERS, lr_scheduler.__name__, _scheduler_values(scheduler))
    values |= {
        "lr_scheduler": scheduler,
        "idx2name": dict(optimizer.idx2name),
        "lr_mult": dict(optimizer.lr_mult),
        "wd_mult": dict(optimizer.wd_mult),
        "_all_index_update_counts": {0: counts},
        "_index_update_count": counts,
        "aggregate_num": _TOGETHER.get(name, 0),
        "sym_info": (),
        "allow_np_array": False,
        **_MXNETS.get(name, {}),
    }
    return _object(optimizer, _OPTIMIZERS, __package__ or "", values)


def _object(thing: Any, mxnets: str, here: str, values: dict[str, Any]) -> Described:
    """An object of a class of opbox's, under MXNet's name for it, or of one of the user's, under its own."""
    cls = type(thing)
    if cls.__name__ == "GroupAdaGrad":
        return Described("mxnet.optimizer.contrib", cls.__name__, values)
    if cls.__module__ == here or cls.__module__.startswith(f"{here}."):
        return Described(mxnets, cls.__name__, values)
    return Described(cls.__module__, cls.__qualname__, values)


def _simple(thing: Any) -> dict[str, Any]:
    """The public attributes of an object that are numbers, strings, flags, or lists of integers."""
    return {
        name: value
        for name, value in vars(thing).items()
        if not name.startswith("_")
        and (
            value is None
            or isinstance(value, (bool, int, float, str))
            or (isinstance(value, list) and all(isinstance(entry, int) for entry in value))
        )
    }


def _scheduler_values(scheduler: Any) -> dict[str, Any]:
    passed = getattr(scheduler, "cur_step_ind", None)
    return _simple(scheduler) if passed is None else {**_simple(scheduler), "cur_step_ind": passed}


def _restored_optimizer(saved: Any, current: Optimizer) -> Optimizer:
    """The optimizer that was saved: the present one, if it is of that class, or one of the registered class.

    Its scheduler is the present one, set to where the saved one was, or one of MXNet's classes.
    """
    if not isinstance(saved, Described):
        raise MXNetError(f"optimizer states: expected an optimizer behind the states, got {value_text(saved)}")
    name = saved.name.rpartition(".")[2]
    optimizer = current if type(current).__name__.lower() == name.lower() else create(name)
    values = dict(saved.values)
    counts = values.pop("_index_update_count", {})
    known = {*vars(optimizer)} - {"sym_info", "param_dict", "lr_scheduler", "_index_update_count"}
    scheduler = values.pop("lr_scheduler", None)
    for name, value in values.items():
        if name in known:
            setattr(optimizer, name, value)
    optimizer._index_update_count = dict(counts)
    optimizer.lr_scheduler = _restored_scheduler(scheduler, current.lr_scheduler)
    return optimizer


def _restored_scheduler(saved: Any, current: Any) -> Any:
    if not isinstance(saved, Described):
        return None
    cls = getattr(lr_scheduler, saved.name, None) if saved.module == _SCHEDULERS else None
    if not saved.name or type(current).__name__ == saved.name.rpartition(".")[2]:
        scheduler = current
    elif isinstance(cls, type) and issubclass(cls, lr_scheduler.LRScheduler):
        needed: dict[str, Any] = {"step": [1] if saved.name == "MultiFactorScheduler" else 1, "max_update": 1}
        scheduler = cls(**{name: value for name, value in needed.items() if name in saved.values})
    else:
        raise MXNetError(
            f"optimizer states: expected a scheduler of class {saved.name}, which the file names, in this optimizer, "
            f"got {type(current).__name__}"
        )
    for name, value in saved.values.items():
        if name != "cur_step_ind" and scheduler is not None:
            setattr(scheduler, name, value)
    return scheduler


def get_updater(optimizer: Optimizer) -> Updater:
    """An updater for an optimizer."""
    return Updater(optimizer)
