"""The devices of a session: each has a table of arrays, a stream, a random source and a budget of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from opbox_ops.backend import backend_for, device_name
from opbox_protocol.errors import BadRequestError

from ..commands import ArrayTable, TypedCommand
from ..commands.array_table import KeepDefinition
from ..commands.devices import UseDevice
from ..custom import Definitions
from ..memory_shares import HOST
from ..quota import Budget, MeteredBackend
from ..settings import Settings
from ..stateless.graph_cache import GraphCache
from ..stateless.graph_runner import check_device

__all__ = ["SessionDevices", "check_devices"]


def check_devices(names: Sequence[str], settings: Settings) -> list[str]:
    """Return the canonical names of the devices that a session is to have.

    Raises:
        BadRequestError: there is none, one comes twice, or the CPU is among several.
        UnsupportedError: this server does not offer one of them.
    """
    if not names:
        raise BadRequestError("devices: expected the name of a device or more, got an empty list")
    devices = [check_device(name, settings) for name in names]
    for position, name in enumerate(devices):
        if name in devices[:position]:
            raise BadRequestError(f"devices: expected each device once, got {name!r} twice")
    if len(devices) > 1 and HOST in devices:
        raise BadRequestError(
            f"devices: expected GPUs alone, got {HOST!r} among {len(devices)}: make a session of its own for the CPU"
        )
    return devices


class SessionDevices:
    """See the module.

    Args:
        names: canonical names, the first one's table first.
        seed: of the random sources.
        settings: the session's limits.
        budget_on: a new budget of the session's on a device.
        host_budget: for what is page-locked.
        refuse_code: takes the sources of operators where the session may have none; None where it may.
        graphs, owner: as of ArrayTable.
        check_further: called before a device is added to the first; raises where the session may have but one.

    Attributes:
        table: the first device's.
        current: that of the device that commands run on now.
        tables: by device, in the order in which the session got them.
        budgets: bytes by device.
        definitions: the operators that the session has been sent.
        seconds: that commands have run on other devices than the first, until `take_seconds`.

    Raises:
        UnsupportedError: this machine lacks one of them.
    """

    def __init__(
        self,
        names: Sequence[str],
        seed: int,
        settings: Settings,
        budget_on: Callable[[str], Budget],
        host_budget: Budget,
        refuse_code: KeepDefinition | None,
        graphs: GraphCache,
        owner: str,
        check_further: Callable[[Sequence[str]], None],
    ) -> None:
        self._seed = seed
        self._settings = settings
        self._budget_on = budget_on
        self._host_budget = host_budget
        self._check_further = check_further
        self._scope: Any = None
        self._since = 0.0
        self.seconds: dict[str, float] = {}
        self._backends: list[Any] = []
        self.budgets: dict[str, Budget] = {}
        self.tables: dict[str, ArrayTable] = {}
        if len(names) > 1:
            check_further(names)
        first = names[0]
        try:
            backend, random, budget = self._opened(first)
            self.definitions = Definitions(backend, random, first, budget)
            self.table = self.current = ArrayTable(
                backend,
                random,
                first,
                budget,
                self.definitions.add if refuse_code is None else refuse_code,
                graphs=graphs,
                owner=owner,
                max_entries=settings.max_session_objects,
                max_rank=settings.max_rank,
            )
            self.tables[first] = self.table
            self.table.use = self.use
            for name in names[1:]:
                self._add(name)
        except BaseException:
            # The session is in no list: nobody else ends its streams.
            self.close()
            raise

    def _opened(self, name: str) -> tuple[Any, Any, Budget]:
        """A device's backend with a stream of the session's own, a random source there, and the budget."""
        backend, budget = backend_for(name), self._budget_on(name)

        def admit(nbytes: int, on_device: bool) -> None:
            counted = budget if on_device else self._host_budget
            counted.take(nbytes) if nbytes > 0 else counted.give(-nbytes)

        with contextlib.ExitStack() as undoing:
            undoing.callback(budget.close)
            own = backend.for_session(admit)
            undoing.callback(own.close)
            with own.scope():
                random = own.random(self._seed)
            undoing.pop_all()
        self.budgets[name] = budget
        self._backends.append(own)
        metered: Any = MeteredBackend(own, budget)
        return metered, random, budget

    def _add(self, name: str) -> ArrayTable:
        backend, random, budget = self._opened(name)
        self.definitions.add_device(backend, random, name, budget)
        table = self.tables[name] = self.table.beside(backend, random, name, budget)
        return table

    @property
    def names(self) -> list[str]:
        """The devices in the order in which the session got them."""
        return list(self.tables)

    def use(self, device: str) -> None:
        """Have another device be the current one, while a batch runs in the scope of the first.

        The session gets the device when it has not had it before.

        Raises:
            BadRequestError: a GPU in a session on the CPU, or the other way round; or the session may have but one.
            UnsupportedError: there is no such device.
        """
        name = device if device in self.tables else check_device(device, self._settings)
        table = self.tables.get(name)
        if table is None:
            if HOST in (name, self.table.device):
                kinds = ("the CPU", "a GPU") if name != HOST else ("a GPU", "the CPU")
                raise BadRequestError(
                    f"use_device: expected {kinds[0]}, which the session is on, got {name!r}: make a session of its "
                    f"own for {kinds[1]}"
                )
            self._check_further([*self.tables, name])
            table = self._add(name)
        if table is self.current:
            return
        self.leave()
        if table is not self.table:
            self._scope = table.backend.scope()
            self._scope.__enter__()
            self._since = time.monotonic()
        table.silent = self.table.silent
        self.definitions.use_device(name)
        self.current = table

    def leave(self) -> None:
        """Have the first device be the current one again: a batch that used another has ended."""
        scope, self._scope = self._scope, None
        if scope is not None:
            name = self.current.device
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - self._since
            self.current = self.table
            self.definitions.use_device(self.table.device)
            scope.__exit__(None, None, None)

    def commands_on(self, table: ArrayTable, commands: Sequence[TypedCommand]) -> Sequence[TypedCommand]:
        """Return those of a batch's commands that run on a table's device."""
        if len(self.tables) == 1:
            return commands
        own, device = [], self.table.device
        for command in commands:
            if isinstance(command, UseDevice):
                device = device_name(command.device)
            elif device == table.device:
                own.append(command)
        return own

    def take_seconds(self) -> Sequence[tuple[str, float]]:
        """Return the seconds that commands have run on other devices than the first since the last time."""
        seconds, self.seconds = self.seconds, {}
        return list(seconds.items())

    def clear(self) -> None:
        """Let go of all arrays and executors, and of operators' sources."""
        for table in self.tables.values():
            table.clear()
        self.definitions.close()

    def close(self) -> None:
        """Give back all memory, and end the streams."""
        with contextlib.ExitStack() as closing:  # all are closed, though one of them fails
            for backend in self._backends:
                closing.callback(backend.close)
            for budget in self.budgets.values():
                closing.callback(budget.close)
