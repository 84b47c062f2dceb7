"""Spans of requests, sent to an OpenTelemetry collector by OTLP over HTTP; imported only where one is set.

A request's span is its caller's child where it has a `traceparent`. Below it are `receive` (its body), `queue`, `batch`
and `compute` (in the worker, which reports their times with its answer), and `transfer` (its answer). The worker sends
nothing itself: code in a process of its own has no network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..stages import Stage
from .request_context import RequestContext

__all__ = ["OtlpTracing"]

PROPAGATED = ("traceparent", "tracestate")


class OtlpTracing:
    """Makes the spans of requests, and sends them.

    Args:
        endpoint: the collector's base URL, as in "http://collector:4318".
        node: this server's name in a cluster, which all its spans carry; "" outside of one.
    """

    def __init__(self, endpoint: str, node: str = "") -> None:
        self._of_node = {"opbox.node": node} if node else {}
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "opbox")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("opbox")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, context: RequestContext, method: str, path: str) -> RequestSpan:
        """The span of a request that has just come."""
        assert context.route is not None
        sent = {name: context.headers.get(name.encode(), b"").decode("latin-1") for name in PROPAGATED}
        attributes = {
            "http.request.method": method,
            "http.route": context.route.path,
            "url.path": path,
            "opbox.request_id": context.request_id,
        }
        name, parent = f"{method} {context.route.path}", self._propagator.extract(sent)
        return RequestSpan(self._tracer, name, parent, attributes, self._of_node)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class RequestSpan:
    """The span of one request: see `request_context.RequestTrace`."""

    def __init__(
        self, tracer: Any, name: str, parent: Any, attributes: dict[str, str], of_node: dict[str, str]
    ) -> None:
        self._tracer, self._of_node = tracer, of_node
        self._begun = time.monotonic()
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        begun_ns = self._wall_ns(self._begun)
        self._span = tracer.start_span(name, parent, SpanKind.SERVER, attributes | of_node, start_time=begun_ns)
        own = self._span.get_span_context()
        self.trace_id = f"{own.trace_id:032x}"
        self.span_id = f"{own.span_id:016x}"
        self.traceparent = f"00-{self.trace_id}-{self.span_id}-{int(own.trace_flags):02x}"
        self._received = self._answered = 0.0
        self._stages: Sequence[Stage] = ()

    def received(self) -> None:
        """Its body is there."""
        self._received = time.monotonic()

    def answered(self, stages: Sequence[Stage]) -> None:
        """Its answer is there, with the worker's stages; where it reports none all is computing."""
        self._answered = time.monotonic()
        self._stages = stages or ([("compute", self._received, self._answered)] if self._received else [])

    def end(self, context: RequestContext) -> None:
        """It has been answered; send its spans."""
        ended = time.monotonic()
        span = self._span
        if span.is_recording():
            stages = [("receive", self._begun, self._received)] if self._received else []
            stages += self._stages
            if self._answered:
                stages.append(("transfer", self._answered, ended))
            inside = set_span_in_context(span)
            for name, begun, end in stages:
                child = self._tracer.start_span(name, inside, attributes=self._of_node, start_time=self._wall_ns(begun))
                child.end(self._wall_ns(end))
            span.set_attribute("http.response.status_code", context.status)
            span.set_attribute("opbox.owner", context.identity.owner)
            if context.error:
                span.set_attribute("opbox.error", context.error)
            if context.status >= 500:
                span.set_status(Status(StatusCode.ERROR, context.error))
        span.end(self._wall_ns(ended))

    def _wall_ns(self, monotonic: float) -> int:
        return int(monotonic * 1e9) + self._offset_ns
