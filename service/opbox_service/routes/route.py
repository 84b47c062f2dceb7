"""Route, and RouteTable, which finds a request's route by method and path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel

from opbox_protocol.errors import ForbiddenError, NotFoundError
from opbox_protocol.routes import NO_ROUTE

from ..owner_terms import Scope
from .models import Body

if TYPE_CHECKING:
    from ..carriers import Call, Done, Rest

__all__ = ["RUN_ERRORS", "Handler", "Route", "RouteTable", "RunsOn", "require_scope"]

RUN_ERRORS = (400, 404, 413, 422, 499, 501, 504, 507)
"""Statuses of the errors of routes that run a graph."""
METHODS = ("DELETE", "GET", "HEAD", "POST", "PUT")
RECENT_PATHS = 1024
"""Number of matched paths to remember: those of active sessions."""
RECENT_LENGTH = 100
"""Maximum number of characters of a remembered path."""


class Handler(Protocol):
    """Serves a route.

    Args:
        place: the engine, or for RunsOn.API and API_THREAD the server (`health.Place`).
        call: the request, its body a model of the route's.
        done: takes the answer, once; its tensors need to be valid while it runs.

    Returns:
        Work that is left to any thread, now or later; or None.
    """

    __name__: str

    def __call__(self, place: Any, call: Call, done: Done, /) -> Rest: ...


class RunsOn(Enum):
    """The place where a route is served."""

    API = "the API process"
    API_THREAD = "a thread of the API process, as it reads files or takes its time"
    ANY_WORKER = "a worker that is free"
    SESSION_WORKER = "the worker that has the session {id}"
    NEW_SESSION_WORKER = "a worker that gets a new session"
    ALL_WORKERS = "every worker; their lists are joined"
    API_WITH_BODY = "the API process, which reads the body"
    MODEL_WORKER = "the worker that has the model {model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route.

    Attributes:
        method, path: as in "GET", "/v1/ops/{name}".
        handler: serves it; its docstring documents it.
        tag: its subject, for the documentation.
        operation: what generated clients call it; "" where that is the handler's name.
        request: the model that bodies are validated by.
        answer: the model of the answer's JSON; None where that is text.
        media_type: of such text.
        runs_on: where it is served.
        scope: what the token needs, one of several where they are listed; None where any token will do.
        token: whether a token is needed at all.
        probe: whether balancers ask for it: it counts towards no limit of requests, and answers at once.
        tensors: whether tensors travel both ways, which may be bytes behind the JSON.
        takes_raw: whether a body may be a tensor's bytes and nothing else, as its JSON of no bytes says.
        status: of success.
        accepted: the model of an answer with status 202.
        ends_session: whether it ends the session {id}.
        all_owners: whether it is about sessions of every owner, and not the caller's alone.
        large: whether a thread reads its JSON, which then may be as large as JSON may be at all; for API_WITH_BODY.
        local: whether it is for clients on the server's machine alone.
        errors: statuses that it may answer beside those of every route.
        documented: whether OpenAPI has it.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handler: Handler
    tag: str
    operation: str = ""
    request: type[Body] | None = None
    answer: type[BaseModel] | None
    media_type: str = "text/plain"
    runs_on: RunsOn = RunsOn.ANY_WORKER
    scope: Scope | tuple[Scope, ...] | None = "run"
    token: bool = True
    probe: bool = False
    tensors: bool = False
    takes_raw: bool = False
    status: int = 200
    accepted: type[BaseModel] | None = None
    ends_session: bool = False
    all_owners: bool = False
    large: bool = False
    local: bool = False
    errors: tuple[int, ...] = ()
    documented: bool = True

    @property
    def operation_id(self) -> str:
        """The name that OpenAPI has for it: a verb and what it is done to."""
        return self.operation or self.handler.__name__

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes of which the token needs one; empty where any token will do."""
        scope = self.scope
        return () if scope is None else scope if isinstance(scope, tuple) else (scope,)


class RouteTable:
    """Routes, found by method and path.

    Example:
        >>> route, parameters = ROUTES.match("GET", "/v1/ops/dot")
        >>> route.path, parameters
        ('/v1/ops/{name}', {'name': 'dot'})
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._exact: dict[tuple[str, str], Route] = {}
        self._recent: dict[tuple[str, str], tuple[Route, Mapping[str, str]]] = {}
        self._templates: dict[tuple[str, int], list[tuple[re.Pattern[str], Route]]] = {}
        for route in self._routes:
            if "{" in route.path:
                pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path))
                self._templates.setdefault((route.method, route.path.count("/")), []).append((pattern, route))
            else:
                self._exact[route.method, route.path] = route

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
        """The route of a request and the parameters in its path; None when there is none. HEAD is served as GET."""
        if method == "HEAD":
            method = "GET"
        route = self._exact.get((method, path))
        if route is not None:
            return route, {}
        recent = self._recent.get((method, path))
        if recent is not None:
            return recent
        for pattern, route in self._templates.get((method, path.count("/")), ()):
            fields = pattern.fullmatch(path)
            if fields is not None:
                match = route, fields.groupdict()
                if len(path) <= RECENT_LENGTH:
                    if len(self._recent) >= RECENT_PATHS:
                        self._recent.clear()
                    self._recent[method, path] = match
                return match
        return None

    def methods(self, path: str) -> list[str]:
        """The methods that a path has, for the header Allow."""
        return [method for method in METHODS if self.find(method, path) is not None]

    def match(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """As `find`; NotFoundError when there is none."""
        match = self.find(method, path)
        if match is None:
            raise NotFoundError(f"{method} {path[:100]}: {NO_ROUTE}")
        return match


def require_scope(scopes: frozenset[Scope], *wanted: Scope) -> None:
    """ForbiddenError unless a token's scopes have one of those that are wanted."""
    if not scopes.intersection(wanted):
        listed = ", ".join(sorted(scopes)) or "none"
        names = " or ".join(map(repr, wanted))
        raise ForbiddenError(f"scope: expected a token with {names}, got one with {listed}: use another token")
