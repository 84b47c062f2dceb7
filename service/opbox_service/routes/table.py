"""The table of routes. Dispatch, OpenAPI, the metrics' labels and the choice of a worker come from it.

A new route is an entry here and its handler, beside the models of its body and answer.
"""

from __future__ import annotations

from opbox_protocol import routes as paths

from . import catalogue, graphs, health, sessions
from .route import Route, RouteTable, RunsOn

__all__ = ["ROUTES"]

_RUN = (400, 404, 413, 422, 501, 504)

ROUTES = RouteTable(
    [
        # -- graphs, without a session
        Route(
            method="PUT",
            path=paths.GRAPHS,
            handler=graphs.put_graph,
            tag="graphs",
            request=graphs.GraphRequest,
            answer=graphs.GraphAnswer,
            errors=(400, 413),
        ),
        Route(
            method="POST",
            path=paths.INFER_SHAPE,
            handler=graphs.infer_shape,
            tag="graphs",
            request=graphs.ShapesRequest,
            answer=graphs.ShapesAnswer,
            hot=True,
            errors=(400, 404, 413, 422),
        ),
        Route(
            method="POST",
            path=paths.INFER_TYPE,
            handler=graphs.infer_type,
            tag="graphs",
            request=graphs.TypesRequest,
            answer=graphs.TypesAnswer,
            hot=True,
            errors=(400, 404, 413, 422),
        ),
        Route(
            method="POST",
            path=paths.FORWARD,
            handler=graphs.forward,
            tag="graphs",
            request=graphs.ForwardRequest,
            answer=graphs.TensorsAnswer,
            hot=True,
            tensors=True,
            errors=_RUN,
        ),
        Route(
            method="POST",
            path=paths.BACKWARD,
            handler=graphs.backward,
            tag="graphs",
            request=graphs.BackwardRequest,
            answer=graphs.TensorsAnswer,
            hot=True,
            tensors=True,
            errors=_RUN,
        ),
        # -- the catalogue of operators
        Route(
            method="GET",
            path=paths.OPERATORS,
            handler=catalogue.operators,
            tag="operators",
            answer=catalogue.Catalogue,
        ),
        Route(
            method="GET",
            path=paths.OPERATOR,
            handler=catalogue.operator,
            tag="operators",
            answer=catalogue.Operator,
            errors=(404,),
        ),
        # -- sessions
        Route(
            method="POST",
            path=paths.SESSIONS,
            handler=sessions.create,
            tag="sessions",
            request=sessions.SessionRequest,
            answer=sessions.SessionAnswer,
            runs_on=RunsOn.NEW_SESSION_WORKER,
            status=201,
            errors=(400, 403, 501),
        ),
        Route(
            method="GET",
            path=paths.SESSIONS,
            handler=sessions.sessions,
            tag="sessions",
            answer=sessions.SessionList,
            runs_on=RunsOn.ALL_WORKERS,
        ),
        Route(
            method="GET",
            path=paths.SESSION,
            handler=sessions.session,
            tag="sessions",
            answer=sessions.SessionState,
            runs_on=RunsOn.SESSION_WORKER,
            errors=(404, 410),
        ),
        Route(
            method="DELETE",
            path=paths.COMMANDS,
            handler=sessions.cancel,
            tag="sessions",
            answer=sessions.Cancelled,
            runs_on=RunsOn.SESSION_WORKER,
            errors=(404, 410),
        ),
        Route(
            method="DELETE",
            path=paths.SESSION,
            handler=sessions.delete,
            tag="sessions",
            answer=sessions.Deleted,
            runs_on=RunsOn.SESSION_WORKER,
            errors=(404, 410),
        ),
        Route(
            method="POST",
            path=paths.COMMANDS,
            handler=sessions.run_commands,
            tag="sessions",
            request=sessions.CommandsRequest,
            answer=sessions.CommandsAnswer,
            runs_on=RunsOn.SESSION_WORKER,
            hot=True,
            tensors=True,
            accepted=sessions.Accepted,
            errors=(400, 404, 409, 410, 413, 422, 501, 504),
        ),
        # -- the server itself
        Route(
            method="DELETE",
            path=paths.REQUEST,
            handler=health.cancel,
            tag="requests",
            answer=health.CancelledRequest,
            runs_on=RunsOn.API,
            errors=(404,),
        ),
        Route(
            method="GET",
            path=paths.LIVE,
            handler=health.live,
            tag="health",
            answer=health.Live,
            runs_on=RunsOn.API,
            scope=None,
            token=False,
        ),
        Route(
            method="GET",
            path=paths.READY,
            handler=health.ready,
            tag="health",
            answer=health.Ready,
            runs_on=RunsOn.API,
            scope=None,
            token=False,
        ),
        Route(
            method="GET",
            path=paths.ABOUT,
            handler=health.about,
            tag="health",
            answer=health.About,
            runs_on=RunsOn.API,
            scope=None,
        ),
        Route(
            method="GET",
            path="/metrics",
            handler=health.metrics,
            tag="health",
            answer=None,
            runs_on=RunsOn.API,
            scope=("metrics", "admin"),
        ),
        Route(
            method="GET",
            path="/openapi.json",
            handler=health.openapi,
            tag="health",
            answer=None,
            runs_on=RunsOn.API,
            scope=None,
            documented=False,
        ),
    ]
)
