"""The engine: every call that touches graphs, tensors or sessions, without HTTP.

    engine = Engine(Settings())
    header, tensors = engine.call("POST", "/v1/forward", {"graph": graph}, {"x": x})

It is the same engine in a worker process, in a thread of the server (`--isolation none`) and in the user's own
process (`opbox_service.embedded`). Who the caller is (`owner`) has been settled before.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

import numpy as np

from opbox_ops import registry
from opbox_protocol.errors import BadRequestError, DeadlineError, MXNetError, NotFoundError, NotReadyError

from .session.batch import Answer, Done
from .session.custody import FREE, Custody
from .session.graphs import GraphCache
from .session.sessions import Sessions
from .session.stateless import Stateless, check_fields
from .settings import SCOPES, Scope, Settings

__all__ = ["Answer", "Call", "Engine", "load_plugin"]

Tensors: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
Rest: TypeAlias = "Callable[[], None] | None"


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what HTTP brings, decoded. The tensors need to live until the answer is given."""

    method: str
    path: str
    header: Mapping[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    owner: str = "local"
    scopes: frozenset[Scope] = SCOPES


class Engine:
    """See the module. Safe to call from many threads.

    Args:
        settings: the limits.
        custody: what becomes of code that sessions bring.
    """

    def __init__(self, settings: Settings, custody: Custody = FREE) -> None:
        self.settings = settings
        self.graphs = GraphCache(settings.graph_cache, settings.max_nodes)
        self.sessions = Sessions(settings, self.graphs, custody)
        self.stateless = Stateless(settings, self.graphs)
        self._behind: ThreadPoolExecutor | None = None
        self._closed = False
        registry.load()
        for path in settings.ops:
            load_plugin(path)

    # -- calling ------------------------------------------------------------------------------------------------

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
            MXNetError: what the call came to; `statuses.tell` has its HTTP form.

        Example:
            >>> engine.call("POST", "/v1/sessions", {"device": "cpu"})[0]["id"]
        """
        answers: list[Any] = []
        answered = Event()

        def done(answer: Answer | BaseException) -> None:
            if isinstance(answer, BaseException):
                answers.append(answer)
            else:
                answers.append((answer.header, {name: np.array(each) for name, each in answer.tensors.items()}))
            answered.set()

        rest = self.begin(Call(method, path, header or {}, tensors or {}, owner, scopes), done)
        if rest is not None and answered.is_set():
            self._later(rest)
        elif rest is not None:
            rest()
        if not answered.wait(self.settings.deadline_s):
            raise DeadlineError(f"{method} {path}: expected an answer within {self.settings.deadline_s:g} s, got none")
        answer: tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]] | BaseException = answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def begin(self, call: Call, done: Done) -> Rest:
        """Start a call. `done` is called once, with the answer or the error, by this thread or another.

        The answer's tensors are valid while `done` runs. What is returned is work to be done by any thread, now or
        later: a session's batches, which may have been answered already.
        """
        try:
            if self._closed:
                raise NotReadyError("the server is stopping: try again when it is back")
            return self._route(call, done)
        except Exception as error:
            done(error)
            return None

    def close(self) -> None:
        """End all sessions; no call is taken any more."""
        self._closed = True
        if self._behind is not None:
            self._behind.shutdown(wait=True)
        self.sessions.close()
        self.stateless.close()

    # -- routes -------------------------------------------------------------------------------------------------

    def _route(self, call: Call, done: Done) -> Rest:
        method, parts = call.method, call.path.strip("/").split("/")
        if parts[:2] == ["v1", "sessions"]:
            return self._sessions(call, parts[2:], done)
        match (method, *parts):
            case ("POST", "v1", "forward"):
                self.stateless.run(call.header, call.tensors, done, backward=False)
            case ("POST", "v1", "backward"):
                self.stateless.run(call.header, call.tensors, done, backward=True)
            case ("POST", "v1", "infer_shape"):
                done(self.stateless.infer_shape(call.header))
            case ("POST", "v1", "infer_type"):
                done(self.stateless.infer_type(call.header))
            case ("PUT", "v1", "graphs"):
                done(self.stateless.put_graph(call.header))
            case ("GET", "v1", "ops"):
                done(self.stateless.ops())
            case ("GET", "v1", "ops", name):
                done(self.stateless.op(name))
            case _:
                raise _no_route(call)
        return None

    def _sessions(self, call: Call, parts: list[str], done: Done) -> Rest:
        match (call.method, *parts):
            case ("POST",):
                session = self.sessions.create(call.owner, call.header, call.scopes)
                told = {"id": session.id, "device": session.device, "ttl_s": session.ttl_s, "limits": session.limits()}
                done(Answer(told, status=201))
            case ("GET",):
                done(Answer({"sessions": [session.json() for session in self.sessions.of(call.owner)]}))
            case ("GET", id):
                done(Answer(self.sessions.get(call.owner, id).json()))
            case ("DELETE", id):
                check_fields(call.header)
                self.sessions.delete(call.owner, id)
                done(Answer({"deleted": id}))
            case ("POST", id, "commands"):
                session = self.sessions.get(call.owner, id)
                seq = session.submit(call.header, call.tensors, done, call.scopes)
                if call.header.get("wait", True) is False:
                    commands = call.header.get("commands")
                    count = len(commands) if isinstance(commands, list) else 0
                    done(Answer({"accepted": seq}, status=202, commands=count))
                return session.drain
            case _:
                raise _no_route(call)
        return None

    def _later(self, work: Callable[[], None]) -> None:
        if self._behind is None:
            self._behind = ThreadPoolExecutor(1, "opbox-stream")
        self._behind.submit(work)


def _no_route(call: Call) -> MXNetError:
    return NotFoundError(f"{call.method} {call.path[:100]}: expected one of the routes of GET /openapi.json")


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
