"""The program's OpenTelemetry context, which requests carry to the server; nothing where the program has none.

OpenTelemetry is never imported here: a program that uses it has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["attached", "current_context", "traced"]


def traced(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers, and W3C's `traceparent` and `tracestate` with them where a span is under way.

    Example:
        >>> with tracer.start_as_current_span("predict"):
        ...     traced({})
        {'traceparent': '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'}
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return headers
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return headers
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
    state = {"tracestate": span.trace_state.to_header()} if span.trace_state else {}
    return {**headers, "traceparent": parent, **state}


def current_context() -> Any:
    """Return the calling thread's context; None where the program does not use OpenTelemetry."""
    context = sys.modules.get("opentelemetry.context")
    return None if context is None else context.get_current()


@contextlib.contextmanager
def attached(current: Any) -> Iterator[None]:
    """The block runs in a context of `current_context`, which may be another thread's."""
    if current is None:
        yield
        return
    from opentelemetry import context

    token = context.attach(current)
    try:
        yield
    finally:
        context.detach(token)
