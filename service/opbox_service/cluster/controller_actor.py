"""The controller's actor: it gives `Controller` a clock, a file for its state, and Ray's nodes.

It runs on the machine of Ray's head. Ray starts it again when it dies; it then goes on from its file, and the nodes,
which have run on meanwhile, report as before.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opbox_protocol.errors import BadRequestError, NotFoundError

from .controller import STOPPING_S, Controller
from .controller_options import ControllerOptions
from .controller_state import SAVE_PAUSE
from .documents import (
    Directory,
    NodeInfo,
    NodeOrders,
    NodeReport,
    OwnerQuotas,
    PlacedSession,
    Refused,
    SessionWish,
    Shares,
    Waiting,
    kind_of,
)
from .machine_record import write_private
from .node_actor import digest_of
from .owner_tokens import quotas_of
from .ray_nodes import RayNode, end_actor, find_actor, name_for, ray_nodes, request_nodes, start_actor
from .report_pace import REPORT_S
from .scaling import Scaling
from .summaries import cluster_summary

__all__ = ["ControllerActor"]

TICK_S = 0.5
LOOK_S = 1.0
"""Seconds between two looks at Ray's nodes."""
SILENT_S = 2.5
"""Seconds without a report after which the controller looks whether a node's server still listens that reports once
a second."""
CONNECT_S = 2.0
APPLY_S = 10.0
"""Seconds that a node has to take an owner's new share before a session is placed there without it."""
STOP_S = 60.0


async def _listens(url: str) -> bool:
    """Return whether something listens at a URL."""
    parts = urlsplit(url)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, parts.port), CONNECT_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def push_of(place: PlacedSession, owner: str) -> tuple[Shares, Mapping[str, int], int]:
    """Return what `NodeActor.apply` takes of a place of an owner's."""
    return place.shares, {owner: place.revision}, place.number


@dataclass(slots=True)
class _Member:
    """A node of the cluster: its Ray node, actor and last report."""

    ray_id: str
    actor: Any = None
    pid: int | None = None
    info: NodeInfo | None = None
    report: NodeReport | None = None
    seen: float = 0.0
    report_s: float = REPORT_S
    busy: float = 0.0


class ControllerActor:
    """The controller of a cluster.

    Args:
        options: what the cluster is started with.
    """

    def __init__(self, options: ControllerOptions) -> None:
        self._options = options
        self._state_file = Path(options.folder) / "controller.json"
        self._usual = OwnerQuotas(limits=options.usual)
        self._controller = Controller(self._usual, pushes=True)
        self._members: dict[str, _Member] = {}
        self._saved, self._save_due = b"", 0.0
        self._tokens, self._tokens_time = "", -1
        self._tokens_failure = ""
        self._scaling = Scaling(options.idle_s if options.every_node else float("inf"))
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: asyncio.Task[None] | None = None
        self._stopping = False
        self._behind = 0.0  # seconds for which calls wait to be read
        self._resumed: list[tuple[str, RayNode]] = []
        self._load()
        self._read_tokens()

    async def begin(self) -> int:
        """Begin to look after nodes, unless it does; returns this process's id."""
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._work_for_ever())
            for name, node in self._resumed:
                self._begin(self._start(name, node))
            self._resumed.clear()
        return os.getpid()

    async def join(self, info: NodeInfo) -> None:
        """Take in a node, whose server has started."""
        await self.begin()
        self._controller.join(info, time.time())
        if info.name in self._members:
            self._members[info.name].info = info

    async def report(self, name: str, report: NodeReport, digest: str) -> tuple[NodeOrders, str | None]:
        """Take a node's report; its orders, and the text of the tokens file unless `digest` says it has that.

        Args:
            name: of the node.
            report: what it has, or what has changed.
            digest: `digest_of` the tokens that it has.
        """
        await self.begin()
        now = time.time()
        member = self._members.get(name)
        if member is not None:
            member.report, member.seen = report, now
        orders = self._controller.report(name, report, now, arrived=now - self._behind)
        if member is not None:
            member.report_s = orders.report_s
            if self._controller.sessions_on(name):
                member.busy = now
        return orders, None if digest == digest_of(self._tokens) else self._tokens

    async def server_lost(self, name: str) -> None:
        """Note that a node's server has died; it is started again, without its sessions."""
        self._controller.lost(name, time.time())

    async def leaving(self, name: str) -> None:
        """Note that a draining node's server begins to stop."""
        self._controller.leaving(name, now := time.time())
        if name in self._members:
            self._members[name].seen = now + STOPPING_S

    async def left(self, name: str) -> None:
        """Note that a draining node's server has stored its sessions' checkpoints, and ended."""
        self._controller.left(name, time.time())
        if name in self._members:
            self._members[name].info = self._members[name].report = None

    async def place(self, wish: SessionWish) -> PlacedSession | Waiting | Refused:
        """Return where a session goes; once it is returned, the node goes by the owner's new share."""
        await self.begin()
        answer = self._controller.place(wish, time.time())
        if isinstance(answer, PlacedSession) and answer.shares:
            member = self._members.get(answer.node)
            if member is not None and member.actor is not None:
                with contextlib.suppress(Exception):  # the node then refuses, or is lost: both are told to the client
                    await asyncio.wait_for(member.actor.apply.remote(*push_of(answer, wish.owner)), APPLY_S)
        return answer

    async def cancel(self, wish: str) -> None:
        """Forget a wish, or give its place back."""
        self._controller.cancel(wish, time.time())

    async def move(self, session: str, new: str, owner: str) -> None:
        """Note that a lost session of an owner's goes on as another."""
        self._controller.move(session, new, owner, time.time())

    async def where(self, session: str) -> Any:
        """Return what `Controller.where` does."""
        return self._controller.where(session)

    async def directory(self, since: int) -> Directory:
        """Return what `Controller.directory` does."""
        return self._controller.directory(since)

    async def summary(self) -> dict[str, Any]:
        """Return what `cluster_summary` does."""
        return cluster_summary(self._controller)

    async def lost(self, name: str) -> None:
        """Note that somebody could not reach a node: it is looked at at once."""
        member = self._members.get(name)
        if member is not None and member.info is not None and not await _listens(member.info.url):
            self._lose(name)

    async def drain(self, name: str) -> None:
        """Place no new sessions on a node.

        Raises:
            NotFoundError: there is no such node.
        """
        if name not in self._controller.nodes:
            names = ", ".join(self._controller.nodes) or "none"
            raise NotFoundError(f"node {name!r}: expected a node of the cluster, got none of them: there are {names}")
        self._controller.drain(name, time.time())

    async def leave(self, ray_node: str) -> None:
        """End the server on one of Ray's nodes, which leaves the cluster, after what it has accepted."""
        for name, member in self._members.items():
            if member.ray_id == ray_node and member.actor is not None:
                await self._give_back(name, member)

    async def status(self) -> dict[str, Any]:
        """Return what `opbox cluster status` prints, in JSON's types."""
        await self.begin()
        directory = self._controller.directory()
        states = {name: node.state for name, node in directory.nodes.items()}
        members = await asyncio.gather(
            *(self._member_status(name, member, states) for name, member in sorted(self._members.items()))
        )
        gone = [
            {"node": name, "state": "lost", "url": node.url}
            for name, node in directory.nodes.items()
            if name not in self._members
        ]
        return {
            "pid": os.getpid(),
            "tokens": self._tokens_failure,
            "nodes": [*members, *gone],
            "models": {model: list(nodes) for model, nodes in directory.models.items()},
            "waiting": {device: demand.sessions for device, demand in self._controller.demand().items()},
        }

    async def stop(self) -> None:
        """End all nodes' servers, each after what it has accepted."""
        self._stopping = True
        if self._work is not None:
            self._work.cancel()
        actors = [member.actor for member in self._members.values() if member.actor is not None]
        with contextlib.suppress(TimeoutError):
            stops = (actor.stop.remote() for actor in actors)
            await asyncio.wait_for(asyncio.gather(*stops, return_exceptions=True), STOP_S)
        for actor in actors:
            await asyncio.to_thread(end_actor, actor)
        self._write(self._state_text())

    async def _member_status(self, name: str, member: _Member, states: Mapping[str, str]) -> dict[str, Any]:
        state: dict[str, Any] = {"pid": None, "starts": 0, "failure": "its actor is starting", "log": ""}
        if member.actor is not None and member.pid is not None:
            try:
                state = await asyncio.wait_for(member.actor.state.remote(), CONNECT_S)
            except Exception as error:
                state["failure"] = f"its actor does not answer: {type(error).__name__}"
        node, report = self._controller.nodes.get(name), member.report or NodeReport({})
        return {
            "node": name,
            "state": states.get(name, "starting"),
            "url": member.info.url if member.info else "",
            "devices": {
                device: {"bytes": nbytes, "free": report.free.get(device, 0)}
                for device, nbytes in (member.info.devices if member.info else {}).items()
            },
            "sessions": self._controller.sessions_on(name) if member.report is not None else 0,
            "models": sorted(node.models) if node is not None else [],
            "queue": report.queue,
            "ray_node": member.ray_id,
            "version": member.info.version if member.info else "",
            **state,
        }

    async def _work_for_ever(self) -> None:
        looked, ticked, spent = 0.0, time.monotonic(), time.process_time()
        while not self._stopping:
            now = time.time()
            try:
                if now - looked >= LOOK_S:
                    looked = now
                    self._read_tokens()
                    await self._look(await asyncio.to_thread(ray_nodes))
                await self._find_silent(now)
                before, spent_before = ticked, spent
                ticked, spent = time.monotonic(), time.process_time()
                self._controller.tick(time.time(), (spent - spent_before) / max(ticked - before, 1e-3))
                await self._save_when_due()
            except Exception as error:  # of Ray, or a full disk: said, and tried again
                print(f"opbox cluster: {type(error).__name__}: {error}", flush=True)
            due = time.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._behind = max(0.0, time.time() - due)

    async def _look(self, nodes: list[RayNode]) -> None:
        """Start actors on nodes that have none, forget nodes that are gone, and ask for nodes that are needed."""
        now = time.time()
        alive = {node.id for node in nodes}
        for name in [name for name, member in self._members.items() if member.ray_id not in alive]:
            self._controller.lost(name, time.time())
            del self._members[name]
        demand: Counter[str] = Counter()
        for device, waiting in self._controller.demand().items():
            demand[kind_of(device)] += waiting.sessions
        bundles = self._scaling.bundles(demand)
        if bundles is not None:
            await asyncio.to_thread(request_nodes, bundles)
        present = {member.ray_id for member in self._members.values()}
        for node in nodes:
            may_serve = node.marked or self._options.every_node
            if may_serve and node.id not in present and self._scaling.takes(node.id, demand):
                name = name_for(node.host, {*self._members, *self._draining()})
                self._members[name] = _Member(node.id, busy=now)
                self._begin(self._start(name, node))
        for name, member in list(self._members.items()):
            if member.actor is not None and self._scaling.gives_back(member.ray_id, now - member.busy, demand):
                self._begin(self._give_back(name, member))

    def _draining(self) -> set[str]:
        directory = self._controller.directory()
        return {name for name, node in directory.nodes.items() if node.state != "lost"}

    async def _start(self, name: str, node: RayNode) -> None:
        """Start a node's actor, and watch it until it ends."""
        member = self._members[name]
        try:
            arguments = (node, name, self._options.settings, self._tokens, self._usual)
            member.actor = await asyncio.to_thread(find_actor, name) or await asyncio.to_thread(start_actor, *arguments)
            member.pid = await member.actor.start.remote()
            await member.actor.watch.remote()
        except Exception as error:  # of Ray: the actor, or all of its node, has died
            print(f"opbox cluster: node {name}: {type(error).__name__}", flush=True)
        self._lose(name)
        if self._members.get(name) is member:
            await asyncio.sleep(LOOK_S)  # Ray forgets the name of a dead actor in its own time
            self._members.pop(name, None)

    async def _give_back(self, name: str, member: _Member) -> None:
        self._controller.drain(name, time.time())
        with contextlib.suppress(Exception):
            await asyncio.wait_for(member.actor.stop.remote(), STOP_S)
        await asyncio.to_thread(end_actor, member.actor)

    async def _find_silent(self, now: float) -> None:
        """Look for nodes without a report of late: one whose server does not listen is lost."""
        if self._behind > CONNECT_S / 2:  # reports wait, and a server that listens would seem not to
            return
        silent = [
            (name, member.info.url)
            for name, member in self._members.items()
            if member.info is not None and now - member.seen > SILENT_S + member.report_s - REPORT_S
        ]
        listens = await asyncio.gather(*(_listens(url) for _, url in silent))
        for (name, _), there in zip(silent, listens, strict=True):
            if not there:
                self._lose(name)

    def _lose(self, name: str) -> None:
        """Tell the controller that a node's sessions are gone, once."""
        member = self._members.get(name)
        if member is None or member.info is not None:
            self._controller.lost(name, time.time())
        if member is not None:
            member.info = member.report = None

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read_tokens(self) -> None:
        """Read the tokens file if it has changed."""
        if not self._options.tokens_file:
            return
        with contextlib.suppress(OSError):  # it is being replaced, or its disk is away: the last text holds
            path = Path(self._options.tokens_file)
            changed = path.stat().st_mtime_ns
            if changed != self._tokens_time:
                text, self._tokens_time = path.read_text(), changed
                try:
                    self._controller.set_quotas(self._usual, quotas_of(text, path, self._usual))
                    self._tokens, self._tokens_failure = text, ""
                except BadRequestError as error:
                    self._tokens_failure = f"the last tokens hold: {error}"
                    print(f"opbox cluster: the last tokens hold: {error}", flush=True)

    async def _save_when_due(self) -> None:
        """Write the state, unless that was done so lately that it would cost more than a tenth of the time."""
        begun = time.monotonic()
        if begun >= self._save_due:
            text = self._state_text()  # not in another thread: the state must not change meanwhile
            self._save_due = time.monotonic() + SAVE_PAUSE * (time.monotonic() - begun)
            await asyncio.to_thread(self._write, text)

    def _state_text(self) -> str:
        members = {name: member.ray_id for name, member in self._members.items()}
        infos = {name: asdict(member.info) for name, member in self._members.items() if member.info is not None}
        dumped = self._controller.dump()
        whole = {"members": members, "infos": infos, "controller": base64.b64encode(dumped).decode()}
        return json.dumps(whole)

    def _write(self, text: str) -> None:
        if text.encode() != self._saved:
            write_private(self._state_file, text)
            self._saved = text.encode()

    def _load(self) -> None:
        """Go on from the state of the controller that has died, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            whole = json.loads(self._state_file.read_text())
            self._controller = Controller.load(base64.b64decode(whole["controller"]))
            self._controller.resume(time.time())
            alive = {node.id: node for node in ray_nodes()}
            for name, ray_id in whole["members"].items():
                if ray_id in alive:
                    info = whole["infos"].get(name)
                    self._members[name] = _Member(ray_id, info=NodeInfo(**info) if info else None, seen=time.time())
                    self._members[name].busy = time.time()
                    self._resumed.append((name, alive[ray_id]))
