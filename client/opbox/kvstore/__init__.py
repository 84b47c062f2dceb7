"""Key-value stores, as `mx.kv`: arrays by key, to which devices push gradients and from which they pull weights.

kv = mx.kv.create("device")
kv.init("w", mx.nd.zeros((2,)))
kv.push("w", [mx.nd.ones((2,), mx.cpu(0)), mx.nd.ones((2,), mx.cpu(1))])     # their sum
kv.pull("w", out=weights)

Nothing waits: pushes and pulls are commands of the session, and travel with the step that they belong to.
"""

from __future__ import annotations

from opbox_protocol.errors import MXNetError

from ..absent import module_getattr
from ..base import value_text
from .base import KVStoreBase
from .dist import DIST_TYPES, DistKVStore
from .kvstore import KVStore

__all__ = ["KVStore", "KVStoreBase", "create"]

_TYPES = ("local", "device", "local_update_cpu", "local_allreduce_cpu", "local_allreduce_device")
"""Names of stores of one process; all compute the same, as a session reaches all its devices."""


def create(name: str = "local") -> KVStoreBase:
    """A new store.

    Args:
        name: "local" or "device", which are one here; "dist_sync" in a worker of several (`mx.dist`), which is
            "dist_device_sync" too; or the name of a class that `KVStoreBase.register` has.

    Raises:
        TypeError: the name is no string.
        MXNetError: "dist_sync" in a program that is no worker; "dist_async", or another kind.

    Example:
        >>> kv = mx.kv.create("device")
    """
    if not isinstance(name, str):
        raise TypeError(f"kvstore: name: expected a string such as 'local' or 'device', got {value_text(name)}")
    kind = name.lower()
    if kind in KVStoreBase.kv_registry:
        return KVStoreBase.kv_registry[kind]()
    if kind in DIST_TYPES:
        return DistKVStore(kind)
    if kind.startswith(("dist", "p3")):
        raise MXNetError(
            f"kvstore: expected 'dist_sync', got {name!r}: workers update weights together, and not each by itself"
        )
    if kind not in _TYPES:
        raise MXNetError(f"kvstore: expected one of {', '.join(_TYPES)}, got {name!r}")
    return KVStore(kind)


__getattr__ = module_getattr(__name__, __all__)
