"""Updates parameters on several devices: by a key-value store, or by an optimizer on each device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import kvstore as kv
from ..base import value_text
from ..ndarray import NDArray

__all__ = ["create_kvstore", "initialize_kvstore", "update_params", "update_params_on_kvstore"]

Arrays = Sequence[Sequence[Any]]
"""For each parameter, its array or gradient (or None) on each device."""
MAX_STORED_SIZE = 1 << 24
"""Maximum elements of a parameter that the store "local" updates itself, as in MXNet."""


def create_kvstore(
    kvstore: Any, num_device: int, arg_params: Mapping[str, NDArray]
) -> tuple[kv.KVStoreBase | None, bool]:
    """The store for a training, None where one device needs none; and whether the store updates the weights.

    Args:
        kvstore: a store, the name of one, or None: then the devices exchange nothing.
        num_device: on how many devices the module is.
        arg_params: the parameters.

    Raises:
        TypeError: `kvstore` is something else.
    """
    stores_weights = os.environ.get("MXNET_UPDATE_ON_KVSTORE", "1") not in ("0", "")
    store: kv.KVStoreBase | None = None
    if isinstance(kvstore, kv.KVStoreBase):
        store = kvstore
    elif isinstance(kvstore, str):
        if num_device > 1 or "dist" in kvstore:
            store = kv.create(kvstore)
            if kvstore == "local" and max((array.size for array in arg_params.values()), default=0) > MAX_STORED_SIZE:
                stores_weights = False
    elif kvstore is not None:
        raise TypeError(f"kvstore: expected a KVStore, its name or None, got {value_text(kvstore)}")
    return store, store is not None and stores_weights and store.is_capable(kv.KVStoreBase.OPTIMIZER)


def initialize_kvstore(
    kvstore: Any,
    param_arrays: Arrays,
    arg_params: Mapping[str, NDArray],
    param_names: Sequence[str],
    update_on_kvstore: bool,
) -> None:
    """Store the parameters; where the store updates them, all devices get its values."""
    for name, arrays in zip(param_names, param_arrays, strict=True):
        if update_on_kvstore:
            kvstore.broadcast(name, arg_params[name], out=arrays)
        else:
            kvstore.init(name, arg_params[name])


def update_params_on_kvstore(
    param_arrays: Arrays, grad_arrays: Arrays, kvstore: Any, param_names: Sequence[str]
) -> None:
    """Let the store sum the devices' gradients, update its weights and copy them to all devices."""
    trained = [
        (name, grads, arrays)
        for name, arrays, grads in zip(param_names, param_arrays, grad_arrays, strict=True)
        if grads[0] is not None
    ]
    if trained:
        names, grads, arrays = zip(*trained, strict=True)
        kvstore.pushpull(list(names), list(grads), out=list(arrays))


def update_params(
    param_arrays: Arrays,
    grad_arrays: Arrays,
    updater: Callable[..., Any],
    num_device: int,
    kvstore: Any = None,
    param_names: Sequence[str] | None = None,
) -> None:
    """Update the weights of each device by `updater`, with states of its own under index * num_device + device.

    Args:
        param_arrays, grad_arrays: for each parameter its arrays, and gradients, by device.
        updater: called with lists of indices, gradients and weights.
        num_device: how many devices there are.
        kvstore: adds the devices' gradients up first; None: each device uses its own.
        param_names: the parameters' keys in the store.
    """
    trained = [index for index, grads in enumerate(grad_arrays) if grads[0] is not None]
    if kvstore is not None and param_names is not None and trained:
        kvstore.pushpull([param_names[index] for index in trained], [list(grad_arrays[index]) for index in trained])
    for device in range(num_device):
        if trained:
            updater(
                [index * num_device + device for index in trained],
                [grad_arrays[index][device] for index in trained],
                [param_arrays[index][device] for index in trained],
            )
