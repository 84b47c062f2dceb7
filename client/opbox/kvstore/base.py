"""The base of stores of keys and values, and the registry of them."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from ..absent import module_getattr
from ..optimizer import Optimizer

__all__ = ["KVStoreBase"]

Store = TypeVar("Store", bound="type[KVStoreBase]")


class KVStoreBase:
    """Base of stores; a class of your own that is registered can be made by `create` and given to `Module.fit`."""

    OPTIMIZER = "optimizer"
    kv_registry: ClassVar[dict[str, type[KVStoreBase]]] = {}

    @staticmethod
    def register(klass: Store) -> Store:
        """Register a store class for `create` under its name in lower case; a decorator."""
        KVStoreBase.kv_registry[klass.__name__.lower()] = klass
        return klass

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether the store can do something: "optimizer" for updating weights itself."""
        raise NotImplementedError("a class of KVStoreBase must define is_capable")

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Store the value and write it to `out`."""
        raise NotImplementedError(f"{type(self).__name__} must define broadcast")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Add the values up and write the result to `out`, or to the values."""
        raise NotImplementedError(f"{type(self).__name__} must define pushpull")

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update the stored values by an optimizer."""
        raise NotImplementedError(f"{type(self).__name__} must define set_optimizer")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states to a file."""
        raise NotImplementedError(f"{type(self).__name__} must define save_optimizer_states")

    def load_optimizer_states(self, fname: str) -> None:
        """Take the optimizer's states from a file."""
        raise NotImplementedError(f"{type(self).__name__} must define load_optimizer_states")

    @property
    def type(self) -> str:
        """The name that `create` knows it by."""
        return type(self).__name__.lower()

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return 0

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return 1


__getattr__ = module_getattr(__name__, __all__)
