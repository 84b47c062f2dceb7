"""What a server keeps on its disk for owners: checkpoints, datasets and published models."""

from __future__ import annotations

from dataclasses import dataclass, field

from .accounting.accounts import Accounts
from .checkpoint_store import FileCheckpoints, store_of
from .dataset_store import FileDatasets, datasets_of
from .graph_store import FileGraphs, graphs_of
from .models.model_store import FileModels
from .models.object_models import ObjectModels
from .settings import Settings
from .state_dir import warn_of_others
from .state_format import StateLock, open_state
from .store_threads import StoreThreads
from .stored_objects import StoredObjects

__all__ = ["NO_STORES", "Stores", "open_stores"]


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a server; each may be absent.

    Attributes:
        checkpoints: None without a state directory.
        datasets: rows that sessions use again.
        models: those that owners published.
        graphs: those that servers share; None where they share no store.
        threads: read and write their files for workers.
        states: say to others that the state directory, and the folder that servers share, are in use.
    """

    checkpoints: FileCheckpoints | None = None
    datasets: FileDatasets | None = None
    models: FileModels | None = None
    threads: StoreThreads = field(default_factory=StoreThreads)
    states: tuple[StateLock, ...] = ()
    graphs: FileGraphs | None = None

    def used(self, owner: str) -> int:
        """Bytes on disk of an owner's checkpoints, datasets and models."""
        stores = (self.checkpoints, self.datasets, self.models)
        return sum(store.used(owner) for store in stores if store is not None)


NO_STORES = Stores()
"""Of a server that keeps nothing."""


def open_stores(settings: Settings, accounts: Accounts) -> Stores:
    """The stores that the settings ask for, with the quotas of accounts.

    Raises:
        NotReadyError: the state directory cannot be used, or has newer state.
    """
    folders = {folder for folder in (settings.state_dir, settings.store_dir) if folder is not None}
    states = tuple(open_state(folder) for folder in sorted(folders))
    stores = Stores(
        store_of(settings, accounts),
        datasets_of(settings, accounts),
        _models_of(settings, accounts),
        states=states,
        graphs=graphs_of(settings),
    )
    for folder in folders:
        warn_of_others(folder)
    return stores


def _models_of(settings: Settings, accounts: Accounts) -> FileModels:
    if settings.objects_url is None:
        return FileModels(settings, accounts)
    return ObjectModels(settings, accounts, StoredObjects(f"{settings.objects_url}/models"))
