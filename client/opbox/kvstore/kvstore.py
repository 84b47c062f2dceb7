"""The store of one process: its devices' gradients are added up in its session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from opbox_protocol.errors import MXNetError, ShapeError

from ..absent import module_getattr
from ..base import value_text
from ..file_errors import content_errors, file_errors, path_of
from ..gradient_compression import TwoBitCompression
from ..ndarray import NDArray, add_n
from ..optimizer import Optimizer, Updater, get_updater
from .base import KVStoreBase

__all__ = ["KVStore"]

Key: TypeAlias = str | int
_DENSE = "opbox's arrays are dense"


class KVStore(KVStoreBase):
    """A store of this process, made by `create`.

    A key is a string or an integer, or a list of either. A value is an array; a list of arrays, one a device; and for a
    list of keys a list of either. Keys of one store are of one type.

    Example:
        >>> kv.init([1, 2], [mx.nd.ones((2,)), mx.nd.zeros((3,))])
        >>> kv.pull([1, 2], out=[first, second])
    """

    def __init__(self, kind: str) -> None:
        self._type = kind
        self._values: dict[Key, NDArray] = {}
        self._updater: Callable[..., Any] | None = None
        self._compression: TwoBitCompression | None = None

    @property
    def type(self) -> str:
        """The store's name."""
        return self._type

    def is_capable(self, capability: str) -> bool:  # type: ignore[override]  # a method of stores, a function of classes
        """Return True for "optimizer": `set_optimizer` has the store update weights.

        Raises:
            ValueError: another capability.
        """
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"is_capable: expected {KVStoreBase.OPTIMIZER!r}, got {capability!r}")

    # ---- values

    def init(self, key: Any, value: Any) -> None:
        """Store copies of the first values of keys.

        Raises:
            MXNetError: a key that has a value already, or is of another type than those before.
            AssertionError: a key that is neither string nor integer, or keys and values of different numbers.
        """
        for one, arrays in _pairs("init", key, value):
            if one in self._values:
                raise MXNetError(f"init: expected a key without a value, got {one!r}: push changes what it has")
            self._check_type(one)
            self._values[one] = arrays[0].copy()

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add up the arrays of each key, and store the sum; with an updater, update the stored value by the sum.

        Args:
            key, value: see the class.
            priority: has no effect: commands run in their order.

        Raises:
            MXNetError: a key without a value.
        """
        self._take([(one, arrays) for one, arrays in _pairs("push", key, value)])

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the stored values to arrays.

        Args:
            key, out: see the class.
            priority, ignore_sparse: have no effect.

        Raises:
            MXNetError: a key without a value, or an array of another shape.
        """
        if out is None:
            raise AssertionError("pull: out: expected an array to write to, got None")
        for one, arrays in _pairs("pull", key, out):
            self._write(one, arrays)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push values and pull the results, into `out` or into the values themselves."""
        pairs = list(_pairs("pushpull", key, value))
        targets = pairs if out is None else list(_pairs("pushpull", key, out))
        self._take(pairs)
        for one, arrays in targets:
            self._write(one, arrays)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Store copies of the first values of keys, and write them to `out`."""
        self.init(key, value)
        self.pull(key, out)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Raise an error: pulling single rows needs sparse arrays.

        Raises:
            MXNetError: always.
        """
        raise MXNetError(f"row_sparse_pull: expected a row_sparse array, got {value_text(out)}: {_DENSE}; use pull")

    # ---- updates

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update the stored values by an optimizer on every push.

        Raises:
            TypeError: something else.

        Example:
            >>> kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
        """
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"set_optimizer: expected one such as mx.optimizer.create('sgd'), got {value_text(optimizer)}"
            )
        self._set_updater(get_updater(optimizer))

    def set_updater(self, updater: Callable[..., Any]) -> None:
        """Call `updater(key, sum, stored)` on every push; it changes the stored value in place."""
        if not callable(updater):
            raise TypeError(f"set_updater: expected a function of key, gradient and weight, got {value_text(updater)}")
        self._updater = updater

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Have pushes send of each number of a gradient -threshold, 0 or threshold, 2 bits, before they are added up.

        The rest waits in a residual for each key and device, and is added to the next gradient. Gradients are float32.

        Args:
            compression_params: `type`, which must be "2bit", and `threshold`, above 0 and 0.5 by default.

        Raises:
            ValueError: the store's type has no compression.
            AssertionError: `compression_params` is no dict.
            MXNetError: no type or another one, or a threshold that is no positive number.

        Example:
            >>> kv = mx.kv.create("device")
            >>> kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        """
        if "device" not in self._type and not self._type.startswith("dist"):
            raise ValueError(f"set_gradient_compression: expected a store of type 'device', got {self._type!r}")
        if self._compression is None:
            self._compression = TwoBitCompression(compression_params)
        else:
            self._compression.configure(compression_params)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states to a file (see `optimizer.Updater.get_states`).

        Raises:
            AssertionError: the store has no optimizer.
        """
        path = path_of(fname, "save_optimizer_states: fname")
        states = self._states_updater("save_optimizer_states").get_states(dump_optimizer)
        with file_errors(path, "written"):
            path.write_bytes(states)

    def load_optimizer_states(self, fname: str) -> None:
        """Take the optimizer's states from a file.

        Raises:
            AssertionError: the store has no optimizer.
        """
        path = path_of(fname, "load_optimizer_states: fname")
        updater = self._states_updater("load_optimizer_states")
        with file_errors(path, "read"):
            states = path.read_bytes()
        with content_errors(path):
            updater.set_states(states)

    def barrier(self) -> None:
        """Do nothing: there is one worker."""

    _barrier = barrier

    # ---- inside

    def _states_updater(self, function: str) -> Updater:
        if not isinstance(self._updater, Updater):
            raise AssertionError(f"{function}: expected a store with an optimizer, got none: call set_optimizer first")
        return self._updater

    def _check_type(self, key: Key) -> None:
        for other in self._values:
            if isinstance(other, str) != isinstance(key, str):
                raise MXNetError(f"kvstore: expected keys of one type, as {other!r}, got {key!r}")
            return

    def _stored(self, function: str, key: Key) -> NDArray:
        self._check_type(key)
        stored = self._values.get(key)
        if stored is None:
            raise MXNetError(f"{function}: expected a key with a value, got {key!r}: call init({key!r}, …) first")
        return stored

    def _take(self, pairs: Sequence[tuple[Key, Sequence[NDArray]]]) -> None:
        """Store or update by the sum of each key's arrays, by number or in the order in which keys were stored.

        Updates of an optimizer travel as one command.
        """
        places = {key: number for number, key in enumerate(self._values)}
        pairs = sorted(pairs, key=lambda pair: pair[0] if isinstance(pair[0], int) else places.get(pair[0], 0))
        stored = [self._stored("push", key) for key, _ in pairs]
        if self._compression is not None:
            sent = self._compression.compress(pairs)
            pairs = [(key, arrays) for (key, _), arrays in zip(pairs, sent, strict=True)]
        sums = self._over_workers([_sum(arrays, value) for (_, arrays), value in zip(pairs, stored, strict=True)])
        names = [key.encode() if isinstance(key, str) else key for key, _ in pairs]
        if self._updater is None:
            for (key, arrays), total in zip(pairs, sums, strict=True):
                self._values[key] = total.copy() if any(total is array for array in arrays) else total
        elif isinstance(self._updater, Updater) and len(set(names)) == len(names):
            self._updater(names, sums, stored)
        else:
            for name, total, value in zip(names, sums, stored, strict=True):
                self._updater(name, total, value)

    def _over_workers(self, sums: list[NDArray]) -> list[NDArray]:
        """Add up sums of the workers' devices over all workers, which is one here."""
        return sums

    def _write(self, key: Key, arrays: Sequence[NDArray]) -> None:
        stored = self._stored("pull", key)
        for array in arrays:
            if array.shape != stored.shape:
                raise ShapeError(f"pull: {key!r}: expected an array of shape {stored.shape}, got {array.shape}")
            stored.copyto(array)


def _pairs(function: str, key: Any, value: Any) -> Iterator[tuple[Key, list[NDArray]]]:
    """Keys with the list of their arrays; a key that comes several times has the arrays of all its places."""
    if not isinstance(key, list | tuple):
        yield _checked_key(function, key), _arrays(function, key, value)
        return
    if not isinstance(value, list | tuple) or len(value) != len(key):
        got = len(value) if isinstance(value, list | tuple) else value_text(value)
        raise AssertionError(f"{function}: expected a value for each of {len(key)} keys, got {got}")
    if len({isinstance(one, str) for one in key}) > 1:
        raise AssertionError(f"{function}: expected keys of one type, got {value_text(key)}")
    together: dict[Key, list[NDArray]] = {}
    for one, arrays in zip(key, value, strict=True):
        together.setdefault(_checked_key(function, one), []).extend(_arrays(function, one, arrays))
    yield from together.items()


def _checked_key(function: str, key: Any) -> Key:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise AssertionError(f"{function}: expected a string or an integer as key, got {value_text(key)}")


def _arrays(function: str, key: Any, value: Any) -> list[NDArray]:
    arrays = [value] if isinstance(value, NDArray) else value
    if not isinstance(arrays, list | tuple):
        raise TypeError(f"{function}: {key!r}: expected an NDArray or a list of them, got {value_text(value)}")
    for array in arrays:
        if not isinstance(array, NDArray):
            raise AssertionError(f"{function}: {key!r}: expected an NDArray, got {value_text(array)}")
    if not arrays:
        raise AssertionError(f"{function}: {key!r}: expected at least one array, got an empty list")
    return list(arrays)


def _sum(arrays: Sequence[NDArray], stored: NDArray) -> NDArray:
    """The sum of arrays of several devices, on the stored value's device; a single array there is its own sum."""
    session, context = stored._session, stored.context
    near = [array if array._session == session else array.as_in_context(context) for array in arrays]
    if len(near) == 1:
        return near[0]
    total: NDArray = add_n(*near)
    total._session = session
    return total


__getattr__ = module_getattr(__name__, __all__)
