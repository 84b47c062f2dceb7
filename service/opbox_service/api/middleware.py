"""The middleware around every route: request ids, host names, tokens, limits on concurrency, errors, metrics, logs.

A route's requests go from here straight to the endpoint; what is no route is answered here.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from starlette.middleware.cors import CORSMiddleware

from opbox_protocol.errors import BadRequestError, NotFoundError, NotReadyError, error_to_json
from opbox_protocol.routes import NO_ROUTE
from opbox_protocol.wire import ANSWERED, CALL, HEADER_LENGTH, PART, PREFER

from ..accounting.books import Books
from ..logs import exceptions_of
from ..routes.page import TAG as PAGE
from ..routes.route import Route, RouteTable
from ..settings import Settings
from .caller import Identity
from .endpoint import Bodies, Endpoint
from .hosts import Hosts
from .http_protocol import SEND_WHOLE
from .identity import Tokens
from .loop_lag import LoopLag
from .metrics import Metrics
from .own_answers import ApiState
from .request_context import FORWARDED, Disconnected, ForwardedRequest, Receive, RequestContext, Scope, Send, Tracing
from .traffic import Traffic

__all__ = ["NOBODY", "Middleware", "permit"]


NOBODY = Identity("", frozenset())
"""Who makes a request whose token is not known, or needs not be."""
REFUSED = (401, 403, 429, 507)
"""Statuses that the audit log records: missing rights and exceeded quotas."""
OVER_QUOTA = (429, 507)
UNTRACED = ("health", PAGE)
"""Tags of routes that are asked again and again by probes and by the page."""
NEW_WORK = ("POST", "PUT")
"""Methods that a stopping server refuses; others can still list and end sessions and requests."""

NO_EXTENSIONS: Mapping[str, Any] = {}
_SERVER_ID = os.urandom(8).hex()
_numbers = itertools.count()
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")
_log = structlog.get_logger("opbox.requests")


class Middleware:
    """The ASGI middleware around every route.

    Args:
        app: takes what is no request: the server's start and stop.
        endpoint: serves the routes.
        routes: finds the route of a request.
        settings, metrics: of the server.
        server: the API process.
        traffic: takes note of what is answered.
        tokens: the callers.
        books: takes note of what owners use and do.
        tracing: makes spans of requests; None where nobody takes them.
    """

    def __init__(
        self,
        app: Any,
        endpoint: Endpoint,
        routes: RouteTable,
        settings: Settings,
        metrics: Metrics,
        server: ApiState,
        traffic: Traffic,
        tokens: Tokens,
        books: Books,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._traffic = traffic
        self.app = app
        self.server = server
        self._endpoint = endpoint
        self._routes = routes
        self._settings = settings
        self._metrics = metrics
        self._tokens = tokens
        self._books = books
        self._hosts = Hosts(settings)
        self._cors = _cors(self._answer, settings.cors_origins) if settings.cors_origins else None
        self._in_flight = books.in_flight
        self._total = 0
        self._lag = LoopLag(lambda: self.in_flight, metrics.loop_lag.observe)
        metrics.longest_lag.labels("wall").set_function(lambda: self._lag.longest)
        metrics.longest_lag.labels("processor").set_function(lambda: self._lag.longest_busy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        root = self._settings.root_path
        if root and (scope["path"] + "/").startswith(root + "/"):
            scope["path"] = scope["path"][len(root) :] or "/"
        # CORS answers by a `send` of its own, behind which the connection is not seen any more.
        scope["opbox.transport"] = RequestContext.transport_of(send)
        await (self._cors or self._answer)(scope, receive, send)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of another protocol, whose scope has a ForwardedRequest."""
        scope["opbox.transport"] = None
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.perf_counter()
        self._lag.request_began()
        headers = dict(scope["headers"])
        forwarded: ForwardedRequest | None = scope.get(FORWARDED)
        if forwarded is None:
            route, parameters = self._routes.find(scope["method"], scope["path"]) or (None, {})
        else:
            route, parameters = forwarded.route, forwarded.parameters
        context = scope["opbox"] = RequestContext(_request_id(headers), NOBODY, headers, route, parameters)
        context.transport = scope["opbox.transport"]
        context.send_whole = scope.get("extensions", NO_EXTENSIONS).get(SEND_WHOLE)
        context.last = self.server.stopping
        context.head = scope["method"] == "HEAD"
        if self._tracing is not None and route is not None and route.tag not in UNTRACED:
            context.trace = self._tracing.begin(context, scope["method"], scope["path"])
        problem: BaseException | None = None
        try:
            await self._serve(scope, receive, send, context)
        except Disconnected:
            context.status, context.error = 499, "the client went away before its request was whole"
        except Exception as error:
            problem = error
            if error_to_json(error)[0] == 500:
                context.problem = exceptions_of(error)
            if context.started:
                raise
            await send_error(error, context, _noting(send, context))
        finally:
            seconds = time.perf_counter() - begun
            label = "other" if route is None else route.path
            owner = context.identity.owner
            self._metrics.count(scope["method"], label, context.status, seconds, context.received, context.sent, owner)
            self._enter(scope, context, label)
            if self._traffic.watchers and not context.streamed:
                self._traffic.note(owner, f"{scope['method']} {label}", context.status, seconds)
            if context.status >= 400:
                reason = _reason(context, problem)
                if not context.expected:
                    self._traffic.note_error(
                        owner, context.request_id, scope["method"], scope["path"], context.status, reason
                    )
                _log_request(scope, context, seconds, reason)
            elif self._settings.log_requests:
                _log_request(scope, context, seconds)
            if context.trace is not None:
                context.trace.end(context)

    def _enter(self, scope: Scope, context: RequestContext, label: str) -> None:
        """Enter an answered request into the books."""
        owner, status, books = context.identity.owner, context.status, self._books
        if owner:
            books.usage.count_request(owner, status in OVER_QUOTA, context.received, context.sent)
        admin = context.route is not None and context.route.scope == "admin"
        if status not in REFUSED and not admin:
            return
        fields = {
            "route": f"{scope['method']} {label}",
            "status": status,
            "request_id": context.request_id,
            "address": _address(scope),
        }
        if status in REFUSED:
            books.audit.refusal(owner, **fields, error=context.error)
        else:
            books.audit.note("admin", owner, **fields, path=scope["path"])

    async def _serve(self, scope: Scope, receive: Receive, send: Send, context: RequestContext) -> None:
        route = context.route
        self._hosts.check(context.headers.get(b"host"))
        forwarded: ForwardedRequest | None = scope.get(FORWARDED)
        if forwarded is not None:
            context.identity = forwarded.identity
            if forwarded.refused is not None:
                raise forwarded.refused
        elif route is None or route.token:
            authorization = context.headers.get(b"authorization")
            context.identity = await self.caller(authorization, _address(scope))
            context.identify_again = self._tokens.identify
            if route is not None:
                permit(context.identity, route)
        if context.last and scope["method"] in NEW_WORK:
            raise NotReadyError("the server is stopping: try again when it, or the one in its place, is ready")
        if route is not None and route.probe:
            await self._endpoint(scope, receive, send)
            return
        owner = context.identity.owner
        self.admit(owner)
        try:
            if route is None:
                await self._refuse(scope, context, _noting(send, context))
            else:
                await self._endpoint(scope, receive, send)
        finally:
            self.leave(owner)

    async def _refuse(self, scope: Scope, context: RequestContext, send: Send) -> None:
        """Answer what is no route: 405 where the path has other methods, 404 elsewhere."""
        place = f"{scope['method']} {scope['path'][:100]}"
        allowed = self._routes.methods(scope["path"])
        if allowed:
            wrong = BadRequestError(f"{place}: expected a method of GET /openapi.json, one of {', '.join(allowed)}")
            await send_error(wrong, context, send, 405, allowed)
        else:
            missing = NotFoundError(f"{place}: {NO_ROUTE}")
            await send_error(missing, context, send)

    async def caller(self, authorization: bytes | None, address: str) -> Identity:
        """Who makes a request, by its Authorization header; `address` is where it comes from.

        Raises:
            AuthenticationError: there is no token, or it is unknown or has expired.
            NotReadyError: it cannot be checked now.
        """
        identity = self._tokens.at_once(authorization)
        return await self._tokens.find(authorization, address) if identity is None else identity

    def bodies(self, owner: str) -> Bodies:
        """Counts bytes of an owner's messages among those of bodies."""
        return self._endpoint.bodies(owner)

    def admit(self, owner: str) -> None:
        """Count an owner's request as being answered, until `leave`.

        Raises:
            QuotaError: the owner has too many.
            NotReadyError: all owners together have.
        """
        limit_of_all = self._settings.max_in_flight
        self._books.check_in_flight(owner)
        if self._total >= limit_of_all:
            raise NotReadyError(f"requests: expected at most {limit_of_all} at a time: try again in a moment")
        self._in_flight[owner] = self._in_flight.get(owner, 0) + 1
        self._total += 1

    def leave(self, owner: str) -> None:
        """Count a request no more."""
        self._total -= 1
        self._in_flight[owner] -= 1
        if not self._in_flight[owner]:
            self._in_flight.pop(owner)  # a Counter's `del` is a function of Python's

    @property
    def in_flight(self) -> int:
        """Requests being answered, without streams of events, which end when the server stops."""
        return self._total - self._traffic.watchers


def permit(identity: Identity, route: Route) -> None:
    """Raise ForbiddenError for a token without the scope that a route needs."""
    if route.scope is not None:
        identity.require(*route.scopes)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _cors(app: Any, origins: tuple[str, ...]) -> CORSMiddleware:
    """`app`, whose answers pages of these origins may read; tokens travel in a header, so cookies are not asked for."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=[
            "Authorization",
            "Content-Type",
            HEADER_LENGTH,
            "X-Request-Id",
            "Priority",
            CALL,
            ANSWERED,
            PART,
            PREFER,
            "traceparent",
            "tracestate",
        ],
        expose_headers=[HEADER_LENGTH, "X-Request-Id", "Retry-After", "Opbox-Calls-Before", "Opbox-Wait"],
    )


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The client's X-Request-Id when it is one, or a new one, which no request to any server has had."""
    text = headers.get(b"x-request-id")
    if text is not None and _REQUEST_ID.fullmatch(text):
        return text.decode()
    return f"{_SERVER_ID}{next(_numbers):06x}"


def _noting(send: Send, context: RequestContext) -> Send:
    """`send`, which adds the request id and notes what is answered."""

    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            context.started = True
            others = [pair for pair in message.get("headers", []) if pair[0].lower() != b"x-request-id"]
            if context.last and not any(name.lower() == b"connection" for name, _ in others):
                others.append((b"connection", b"close"))
            message = {**message, "headers": [*others, (b"x-request-id", context.request_id.encode())]}
        else:
            context.sent += len(message.get("body", b""))
        await send(message)

    return wrapped


async def send_error(
    error: BaseException,
    context: RequestContext,
    send: Send,
    status: int | None = None,
    allowed: Sequence[str] = (),
) -> None:
    """Answer with an error, in the one form that errors have.

    Args:
        error: what to tell.
        context: of the request.
        send: takes the answer.
        status: another than the error's own.
        allowed: the methods that the path has, where the request's is none of them.
    """
    usual, header = error_to_json(error)
    context.error = header["error"]
    status = status or usual
    body = json.dumps({**header, **context.ids}, ensure_ascii=False, default=str).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        presented = context.headers.get(b"authorization", b"").lower().startswith(b"bearer ")
        headers.append((b"www-authenticate", b'Bearer error="invalid_token"' if presented else b"Bearer"))
    if allowed:
        headers.append((b"allow", ", ".join(allowed).encode()))
    if context.closes:
        headers.append((b"connection", b"close"))
    if status in (429, 503):
        wait_s = int(header["detail"].get("retry_after_s", 1))
        headers.append((b"retry-after", b"%d" % wait_s))
        if status == 429:
            before = int(header["detail"].get("calls_before", 0))
            headers += [(b"opbox-calls-before", b"%d" % before), (b"opbox-wait", b"%d" % wait_s)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _reason(context: RequestContext, problem: BaseException | None) -> str:
    """The sentence that an error was answered with."""
    reason = str(problem) if problem is not None else context.error
    return (reason or f"answered {context.status} without a reason")[:500]


def _log_request(scope: Scope, context: RequestContext, seconds: float, reason: str = "") -> None:
    level = _log.error if context.status >= 500 else _log.debug if context.expected else _log.info
    entry: dict[str, Any] = {
        **context.ids,
        "method": scope["method"],
        "path": scope["path"],
        "status": context.status,
        "ms": round(seconds * 1e3, 3),
        "owner": context.identity.owner,
        "received": context.received,
        "sent": context.sent,
    }
    if reason:
        entry["error"] = reason
    if context.problem is not None:
        entry["exception"] = context.problem
    level("request", **entry)
