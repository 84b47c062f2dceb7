"""The actor of a node: it starts and watches the server there, reports to the controller, and carries out its orders.

It runs on one of Ray's nodes and reserves that node's GPUs, so that no other job of Ray gets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from opbox import token_store
from opbox_protocol import routes
from opbox_protocol.errors import NotReadyError

from .documents import NodeInfo, NodeOrders, NodeReport, OwnerQuotas, Shares
from .machine_record import write_private
from .node_models import ModelWork, StatedModels
from .node_reports import Refusals, ServerApi, devices_of, report_of
from .node_shares import NodeShares
from .owner_tokens import quotas_of
from .quotas import UNLIMITED
from .report_changes import ReportChanges
from .report_pace import REPORT_S
from .server_process import TRUSTED, ServerProcess, with_proxies

__all__ = ["CONTROLLER", "NodeActor", "digest_of"]

CONTROLLER = "opbox-controller"
"""The name of the controller's actor."""
CALL_S = 15.0
"""Seconds for an answer of the controller, after which a report is given up: the next one has newer figures."""
LOAD_S = 600.0
"""Seconds that a model may take to be loaded."""
PORT = "8002"


def digest_of(text: str) -> str:
    """Return what tells two texts of a tokens file apart."""
    return hashlib.sha256(text.encode()).hexdigest()


class NodeActor:
    """A node.

    Args:
        name: of the node: the beginning of its sessions' ids.
        settings: of the server, where the environment of this node has none: {"OPBOX_DEVICE": "cpu"}.
        tokens: text of the tokens file that all nodes have.
        host: address to listen on, where the environment has no OPBOX_HOST.
        usual: quotas over all nodes of owners who have no terms of their own.
    """

    def __init__(
        self, name: str, settings: Mapping[str, str], tokens: str, host: str, usual: OwnerQuotas = UNLIMITED
    ) -> None:
        self._name = name
        self._folder = token_store.make_folder() / f"node-{name}"
        self._tokens_file = self._folder / "tokens.json"
        self._digest = digest_of(tokens)
        own = {key: value for key, value in os.environ.items() if key.startswith("OPBOX_")}
        defaults = {"OPBOX_HOST": host, "OPBOX_PORT": PORT, **settings}
        # Each server of a machine has what it leaves there in a folder of its own.
        fixed = {"OPBOX_NODE": name, "OPBOX_RUNTIME_DIR": str(self._folder), "OPBOX_TOKENS": "", "OPBOX_TOKEN_FILE": ""}
        fixed["OPBOX_TOKENS_FILE"] = str(self._tokens_file) if tokens else ""
        shares_file = self._folder / "quota-shares.json"
        fixed["OPBOX_QUOTA_SHARES_FILE"] = str(shares_file)
        self._usual = usual
        self._shares = NodeShares(shares_file, quotas_of(tokens, self._tokens_file, usual), usual)
        if tokens:
            write_private(self._tokens_file, tokens)
        own |= {name: text for name in [TRUSTED] if (text := with_proxies(own, settings))}
        variables = {**defaults, **own, **fixed}
        self._server = ServerProcess(variables, self._folder)
        self._controller: Any = None
        self._joined = ""
        self._number = 0
        self._report_s = REPORT_S
        self._refusals = Refusals()
        self._changes = ReportChanges()
        self._api: ServerApi | None = None
        self._stores = bool(variables.get("OPBOX_STORE_URL"))
        models = variables.get("OPBOX_MODELS")
        self._models = StatedModels(Path(models) if models else None, variables.get("OPBOX_DEVICE") or "cpu")
        self._model_work = ModelWork()
        self._may_leave = self._leaves = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._error = ""

    async def start(self) -> int:
        """Start the server, and the reports; returns this process's id when the server serves or has failed to."""
        if not self._tasks:
            with contextlib.suppress(NotReadyError):  # it is in the state, and the server is started again
                await self._server.start()
            self._begin(self._report_for_ever())
        return os.getpid()

    async def watch(self) -> None:
        """Never return: the call ends when this node does, and so its caller knows."""
        await asyncio.Event().wait()

    async def state(self) -> dict[str, Any]:
        """Return what `opbox cluster status` says of this node's server."""
        return {
            "pid": self._server.pid,
            "starts": self._server.starts,
            "failure": self._server.failure or self._error,
            "log": str(self._server.log),
        }

    async def apply(self, shares: Shares, revisions: Mapping[str, int], number: int) -> None:
        """Give owners new shares of their quotas; once this returns, the server goes by them, or by newer ones."""
        if shares:
            await asyncio.to_thread(self._shares.update, shares, revisions)
        self._number = max(self._number, number)

    async def stop(self) -> None:
        """End the server, which answers what it has accepted first."""
        for task in self._tasks:
            task.cancel()
        await self._server.stop()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report_for_ever(self) -> None:
        while True:
            try:
                await self._report()
                self._error = ""
            except NotReadyError as error:  # the server is starting, or is busy
                self._error = str(error)
            except Exception as error:
                # Of Ray's many: the controller has died and is started again, with the state that it had.
                self._controller, self._error = None, f"controller: {type(error).__name__}"
            await self._until_due()

    async def _until_due(self) -> None:
        """Wait until the next report is due, or the server that the controller knows does not run any more."""
        report_s, begun = self._report_s, time.monotonic()
        self._report_s = REPORT_S
        while (left := begun + report_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left, REPORT_S))
            if self._server.url != self._joined:
                return

    async def _report(self) -> None:
        url = self._server.url
        if url is None:
            if self._leaves:
                await self._call("left", self._name)
                self._leaves, self._joined = False, ""
            if self._joined:  # its sessions are gone
                self._joined = ""
                await self._call("server_lost", self._name)
            return
        if self._api is None or self._api.url != url or not self._joined:
            self._api = ServerApi(url, self._server.token)
            await self._join(self._api)
        report = await asyncio.to_thread(self._read, self._api)
        orders, tokens = await self._call("report", self._name, self._changes.of(report), self._digest)
        self._changes.answered(orders)
        self._report_s = orders.report_s
        if tokens is not None:
            write_private(self._tokens_file, tokens)
            self._digest = digest_of(tokens)
            self._shares.replace(quotas_of(tokens, self._tokens_file, self._usual))
        await self._carry_out(orders, self._api)

    async def _join(self, api: ServerApi) -> None:
        rows = (await asyncio.to_thread(api.get, routes.DEVICES))["devices"]
        info = NodeInfo(self._name, api.url, devices_of(rows), version("opbox-service"))
        self._number, self._changes = 0, ReportChanges()
        await asyncio.to_thread(self._shares.clear)
        await self._call("join", info)
        self._joined = api.url

    def _read(self, api: ServerApi) -> NodeReport:
        paths = routes.DEVICES, routes.ADMIN_SESSIONS, routes.ADMIN_MODELS, routes.ADMIN_USAGE
        number = self._number
        devices, sessions, models, usage = map(api.get, paths)
        # Only by a store can other nodes go on from what this one saves.
        rows = sessions["sessions"]
        self._may_leave = self._stores and bool(rows) and all(row.get("checkpoint") for row in rows)
        refused = self._refusals.since(usage["owners"], time.monotonic())
        report = report_of(devices, sessions, models, usage)
        return replace(report, refused=refused, orders=number, terms=self._models.now())

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._controller is None:
            import ray

            self._controller = await asyncio.to_thread(ray.get_actor, CONTROLLER)
        return await asyncio.wait_for(getattr(self._controller, method).remote(*arguments), CALL_S)

    async def _carry_out(self, orders: NodeOrders, api: ServerApi) -> None:
        if orders.rejoin:
            self._joined = ""
            return
        await self.apply(orders.shares, orders.revisions, orders.number)
        if orders.draining and self._may_leave:
            await self._call("leaving", self._name)
            self._leaves = True
            await self._server.stop()
            return
        load, unload = self._model_work.begin(orders, time.monotonic())
        if load or unload or orders.end:
            slow = ServerApi(api.url, self._server.token, LOAD_S)
            work = *((slow.end, id) for id in orders.end), *((slow.unload, name) for name in unload)
            self._begin(self._do(slow, [*work, *((slow.load, name) for name in load)]))

    async def _do(self, api: ServerApi, work: Sequence[tuple[Callable[[str], None], str]]) -> None:
        """Load, unload and end what the orders say; what fails is in the next reports, and is ordered again."""
        try:
            for action, name in work:
                with contextlib.suppress(NotReadyError):
                    await asyncio.to_thread(action, name)
        finally:
            self._model_work.ended(name for _, name in work)
            api.close()
