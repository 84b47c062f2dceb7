"""A collector of OpenTelemetry's spans: an HTTP server that reads OTLP's protobuf."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_S = 60.0


class Collector:
    """The spans that have come.

    Attributes:
        url: what the server is to be told.
        service_names: of those who sent some.
    """

    def __init__(self) -> None:
        self._spans: list[Any] = []
        self._more = threading.Condition()
        self.service_names: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                collector.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def take(self, body: bytes) -> None:
        """Read a request's spans."""
        message = ExportTraceServiceRequest.FromString(body)
        with self._more:
            for resource in message.resource_spans:
                for attribute in resource.resource.attributes:
                    if attribute.key == "service.name":
                        self.service_names.add(attribute.value.string_value)
                for scope in resource.scope_spans:
                    self._spans += scope.spans
            self._more.notify_all()

    def wait(self, whole: Callable[[list[Any]], bool], trace_id: str) -> dict[str, Any]:
        """Wait until the spans of a trace are whole; they by name."""

        def of_trace() -> list[Any]:
            return [span for span in self._spans if span.trace_id.hex() == trace_id]

        with self._more:
            assert self._more.wait_for(lambda: whole(of_trace()), PATIENCE_S), [span.name for span in self._spans]
            return {span.name: span for span in of_trace()}

    def traces(self) -> set[str]:
        """The ids of all traces."""
        with self._more:
            return {span.trace_id.hex() for span in self._spans}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens in the block."""
    collector = Collector()
    thread = threading.Thread(target=collector.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.http.shutdown()
        collector.http.server_close()
        thread.join()
