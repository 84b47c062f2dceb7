"""The engine: every call that touches graphs, tensors or sessions, without HTTP.

    engine = Engine(Settings())
    header, tensors = engine.call("POST", "/v1/forward", {"graph": graph}, {"x": x})

It is the same engine in a worker process, in a thread of the server (`--isolation none`) and in the user's own
process (`opbox_service.embedded`). Who the caller is (`owner`) has been settled before.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import backend_for, device_name
from opbox_protocol.errors import BadRequestError, DeadlineError, NotFoundError, NotReadyError

from .carriers import Answer, Call, Done, OwnerQuota, Rest, Tensors
from .checkpoint_store import CheckpointStore, store_of
from .custom.model_code import ModelCode
from .dataset_store import DatasetStore, datasets_of
from .device_time import DeviceTimes
from .graph_store import GraphStore
from .memory_shares import HOST, device_bytes, gpu_bytes
from .models.model_host import ModelHost
from .owner_terms import SCOPES, Scope
from .quota import NO_LIMIT, Ledger
from .routes.health import ServedModels
from .routes.models import Body
from .routes.route import RouteTable
from .routes.table import ROUTES
from .selfcheck.first_use import watch_first_use
from .selfcheck.report import summary
from .session.code_policy import UNWATCHED, CodePolicy
from .session.moving import read_image
from .session.session import ServerSession
from .session.sessions import Sessions
from .settings import Settings
from .state_format import open_state
from .stateless.graph_cache import GraphCache
from .stateless.graph_runner import GraphRunner, check_device
from .stateless.recent_headers import RecentHeaders
from .stream_thread import StreamThread
from .task import Task, current, running
from .validation import validate

if TYPE_CHECKING:
    from .worker.model_publishing import ModelPublishing

__all__ = ["Engine", "load_plugin"]


class Engine:
    """Runs calls that touch graphs, tensors or sessions. Safe to call from many threads.

    Args:
        settings: the limits.
        code_policy: for code that sessions upload.
        routes: the calls that it takes.
        checkpoints: where sessions save them; by default the settings' state directory.
        share: of the memory of every device, what this engine's sessions may have.
        datasets: the store of them; by default in the settings' state directory.
        graphs: those that other servers were sent; None where no store is shared.

    Attributes:
        graphs, runner, models, sessions: what the handlers of routes work on.
        recent_headers: of calls without a session.
        device_times: how long calls waited and ran.
        dataset_store: the store of datasets.
    """

    def __init__(
        self,
        settings: Settings,
        code_policy: CodePolicy = UNWATCHED,
        routes: RouteTable = ROUTES,
        checkpoints: CheckpointStore | None = None,
        share: float = 1.0,
        datasets: DatasetStore | None = None,
        graphs: GraphStore | None = None,
    ) -> None:
        self.settings = settings
        self._state = open_state(settings.store_dir) if datasets is None and settings.store_dir is not None else None
        self.datasets = datasets_of(settings) if datasets is None else None
        self.dataset_store: DatasetStore | None = datasets or self.datasets
        self.checkpoints = store_of(settings) if checkpoints is None else None
        self.graphs = GraphCache(settings.graph_cache, settings.max_nodes, settings.max_edges, store=graphs)
        self.recent_headers = RecentHeaders()
        self.device_times = DeviceTimes()
        self.ledger = ledger_of(settings, share)
        self._share = share
        self._beside: Mapping[str, int] = {}
        self.runner = GraphRunner(settings, self.graphs, self.device_times, self.ledger)
        watcher = code_policy.watcher
        open_code = partial(ModelCode, watcher=watcher) if code_policy.accepts_code else None
        self.models = ModelHost(settings, self.ledger, self.device_times, check_device, open_code)
        self.sessions = Sessions(
            settings,
            self.graphs,
            code_policy,
            self.device_times,
            self.ledger,
            checkpoints or self.checkpoints,
            self.dataset_store,
        )
        self._routes = routes
        self._stream = StreamThread()
        self._closed = False
        watch_first_use(settings)
        for name in (settings.device, *settings.devices):
            backend_for(name)  # that a server was to have and has not is known at its start, not by the first call
        registry.load()
        for path in settings.ops:
            load_plugin(path)

    def call(
        self,
        method: str,
        path: str,
        header: Mapping[str, Any] | None = None,
        tensors: Tensors | None = None,
        *,
        owner: str = "local",
        scopes: frozenset[Scope] = SCOPES,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Make a call and wait for its answer: its header, and tensors that are the caller's own.

        Raises:
            MXNetError: what the call came to; `error_to_json` has its HTTP form.

        Example:
            >>> engine.call("POST", "/v1/sessions", {"device": "cpu"})[0]["id"]
        """
        answers: list[Any] = []
        answered = Lock()  # until there is an answer; an event takes ten times as long
        answered.acquire()

        def done(answer: Answer | BaseException) -> None:
            if isinstance(answer, BaseException):
                answers.append(answer)
            else:
                answers.append((answer.header, {name: np.array(array) for name, array in answer.tensors.items()}))
            answered.release()

        header, tensors = header or {}, tensors or {}
        rest = self.begin(self.read(method, path, header, tensors, owner=owner, scopes=scopes), done)
        if rest is not None and answers:
            self._stream.submit(rest)
        elif rest is not None:
            rest()
        if not answers and not answered.acquire(timeout=self.settings.deadline_s):
            raise DeadlineError(f"{method} {path}: expected an answer within {self.settings.deadline_s:g} s, got none")
        answer: tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]] | BaseException = answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def session_at(self, path: str, owner: str = "local") -> ServerSession | None:
        """The owner's session whose batches go to this path; None where there is none."""
        _, parameters = self._routes.match("POST", path)
        return self.sessions.find(owner, parameters["id"])

    def read(
        self,
        method: str,
        path: str,
        header: Mapping[str, Any],
        tensors: Tensors,
        *,
        owner: str = "local",
        scopes: frozenset[Scope] = SCOPES,
    ) -> Call:
        """The call of a method and path.

        Raises:
            NotFoundError: no such route.
            BadRequestError: a header that is not the route's.
        """
        route, parameters = self._routes.match(method, path)
        body = validate(route.request or Body, header)
        return Call(route, parameters, body, tensors, owner, scopes, task=Task())

    def begin(self, call: Call, done: Done) -> Rest:
        """Start a call. `done` is called once, with the answer or the error, by this thread or another.

        The answer's tensors are valid while `done` runs. What is returned is work to be done by any thread, now or
        later: a session's batches, which may have been answered already.
        """
        try:
            self.admit(call.owner, call.quota)
            if call.task is current():  # who has read it works on it already
                return call.route.handler(self, call, done)
            with running(call.task):
                return call.route.handler(self, call, done)
        except Exception as error:
            done(error)
            return None

    def admit(self, owner: str, quota: OwnerQuota | None) -> None:
        """Take a call of an owner's, under its quota; NotReadyError when no calls are taken any more."""
        if self._closed:
            raise NotReadyError("the server is stopping: try again when it is back")
        self._apply(owner, quota)

    def adopt(self, owner: str, quota: OwnerQuota | None, fd: int) -> ServerSession:
        """Continue a session of another process from its image `fd` (`session.moving`).

        Raises:
            MXNetError: there is no room for it here.
        """
        self._apply(owner, quota)
        header, image = read_image(fd)
        return self.sessions.adopt(owner, header, image, quota)

    def _apply(self, owner: str, quota: OwnerQuota | None) -> None:
        """Hold the owner, and all owners, to what `quota` leaves them here."""
        limit = NO_LIMIT if quota is None else (quota.memory_bytes, quota.elsewhere)
        self.ledger.limit(owner, *limit)
        self.ledger.bound(HOST, quota.host_bytes if quota is not None else 0)
        self._leave(quota.beside if quota is not None else {})

    def _leave(self, beside: Mapping[str, int]) -> None:
        """Lower the limit of each GPU by the bytes that sessions in other processes use."""
        if beside == self._beside:
            return
        for device in {*self._beside, *beside}:
            rest = int(self.ledger.whole(device) / self._share) - beside.get(device, 0)
            self.ledger.bound(device, max(1, rest))
        self._beside = beside

    def memory(self) -> list[tuple[str, str, int]]:
        """Owner, device and bytes of all sessions and published models there."""
        sums: Counter[tuple[str, str]] = Counter()
        for owner, device, nbytes in (*self.sessions.memory(), *self.models.memory()):
            sums[owner, device] += nbytes
        return [(owner, device, nbytes) for (owner, device), nbytes in sums.items()]

    def devices(self) -> list[dict[str, Any]]:
        """The devices in use, and those that the settings name, with their memory (routes/devices)."""
        names = map(device_name, [self.settings.device, *self.settings.devices])
        # Somebody may have asked for a device that this machine lacks.
        used = {name for session in self.sessions.all() for name in session.devices.names}
        asked = [name for name in self.ledger.devices if name in used]
        return [self._device(name) for name in dict.fromkeys([*names, *asked])]

    def _device(self, name: str) -> dict[str, Any]:
        used, whole = backend_for(name).memory()
        return {
            "device": name,
            "worker": os.getpid(),
            "used_bytes": sum(session.bytes_by_device.get(name, 0) for session in self.sessions.all()),
            "limit_bytes": self.ledger.whole(name),
            "memory_used_bytes": used,
            "memory_bytes": whole,
            "kernels": summary(name),
        }

    def wait_until_idle(self) -> None:
        """Wait until batches that have been answered before they ran have run."""
        self._stream.wait_until_idle()

    def close(self) -> None:
        """End all sessions; no call is taken any more."""
        self._closed = True
        self._stream.close()
        self.sessions.close()
        self.models.close()
        self.runner.close()
        if self._state is not None:
            self._state.close()

    # -- for the routes that a server answers itself (routes.health.Place) ----------------------------------------

    @property
    def unready(self) -> str:
        """Why calls cannot be taken; empty where they can be."""
        return "the engine is closed" if self._closed else ""

    confinement = ""
    """Empty: code runs in the user's own process."""

    @property
    def served_models(self) -> ServedModels:
        """NotFoundError: an engine in one's own process serves no models."""
        raise NotFoundError("GET /v2/models: expected a server, got an engine in this process: use `opbox serve`")

    @property
    def publishing(self) -> ModelPublishing:
        """NotFoundError: an engine in one's own process serves no models."""
        raise NotFoundError("PUT /v1/models: expected a server, got an engine in this process: use `opbox serve`")

    books = None
    """None: an embedded engine counts no usage."""

    def metrics(self) -> Coroutine[Any, Any, Answer]:
        """NotFoundError: an engine in one's own process counts nothing."""
        raise NotFoundError("GET /metrics: expected a server, got an engine in this process: use `opbox serve`")

    def events(self, owner: str, scopes: frozenset[Scope]) -> AsyncIterator[bytes]:
        """Raise NotFoundError: an engine in the user's own process has no events."""
        raise NotFoundError("GET /v1/events: expected a server, got an engine in this process: use `opbox serve`")

    def cancel(self, owner: str, request_id: str) -> bool:
        """False: calls have no ids here."""
        return False

    def openapi(self) -> dict[str, Any]:
        """NotFoundError: an engine in one's own process has no document."""
        raise NotFoundError("GET /openapi.json: expected a server, got an engine in this process: use `opbox serve`")


def ledger_of(settings: Settings, share: float = 1.0) -> Ledger:
    """Memory of an engine's owners, of which it has this share, on the machine and on each GPU that it is asked for."""

    def of_gpu(device: str) -> int:
        _, memory = backend_for(device).memory()
        return int(gpu_bytes(settings, memory) * share)

    return Ledger(int(device_bytes(settings) * share), settings.max_owner_bytes, of_gpu)


def load_plugin(path: Path) -> None:
    """Run a Python file that registers operators.

    Raises:
        BadRequestError: there is no such file, or it fails; says where.
    """
    if not path.is_file():
        raise BadRequestError(f"operators: expected a Python file, got {str(path)!r}")
    name = f"opbox_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadRequestError(f"operators: expected a file ending in .py, got {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with registry.loading(f"operators of {path}"):
        spec.loader.exec_module(module)
