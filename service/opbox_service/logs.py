"""Structured logs on standard error: one JSON object a line, or at a terminal lines for people."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import MutableMapping
from functools import cache
from typing import Any, TextIO, TypeAlias

from .settings import Settings

__all__ = ["EXCEPTION_BYTES", "LOGGER", "Exceptions", "Logger", "configure", "exceptions_of"]

Exceptions: TypeAlias = "list[dict[str, Any]]"
"""An exception and what it came from, each with its type, its words and its frames: a log line's `exception`."""
EXCEPTION_BYTES = 1 << 14
"""Maximum bytes of an exception in a log line, as user code may raise anything."""
LOGGER = "opbox.level"
"""A logger of the standard library that has the log's level and logs nothing: structlog does not tell its own."""
MAX_EXCEPTIONS, WORDS, FRAMES = 4, 1000, (50, 20, 4)
"""Maximum exceptions of a chain, characters per message, and frames to try per exception."""


@cache
def _transform() -> Any:
    """Return what writes an exception as rows, without values of variables: these take long, and may be secrets."""
    from structlog.tracebacks import ExceptionDictTransformer

    return ExceptionDictTransformer(show_locals=False)


def exceptions_of(error: BaseException) -> Exceptions:
    """The exception as a log line has it, in EXCEPTION_BYTES: what is too long loses outer frames."""
    rows: Exceptions = _transform()((type(error), error, error.__traceback__))[:MAX_EXCEPTIONS]
    for row in rows:
        row["exc_value"] = row["exc_value"][:WORDS]
    for most in FRAMES:
        for row in rows:
            row["frames"] = row["frames"][-most:]
        if len(json.dumps(rows)) <= EXCEPTION_BYTES:
            break
    return rows


class LogStream:
    """A stream that ignores write errors, so that a full disk does not stop the server."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class Logger:
    """structlog's logger of a name, which loads structlog when something is logged: an engine in a script seldom does.

    Args:
        name: as in "opbox.sessions".
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self._name), level)


def configure(settings: Settings) -> None:
    """Set structlog up for this process, and send what libraries log (uvicorn) the same way."""
    import structlog

    stream: Any = LogStream(sys.stderr)
    level = getattr(logging, settings.log_level.upper())
    at_terminal = sys.stderr is not None and sys.stderr.isatty()
    for_people = at_terminal if settings.log_format == "auto" else settings.log_format == "text"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if for_people else "iso", utc=not for_people),
        structlog.processors.ExceptionRenderer(_transform()),
    ]
    rendering: list[Any] = [structlog.processors.JSONRenderer()]
    if for_people:
        colors = at_terminal and not os.environ.get("NO_COLOR")
        rendering = [_exceptions_as_text, structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0)]
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *rendering,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger(LOGGER).setLevel(level)


def _exceptions_as_text(logger: Any, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write a line's exceptions as Python does, the first cause first."""
    if isinstance(rows := entry.get("exception"), list):
        blocks = []
        for row in reversed(rows):
            frames = [f'  File "{one["filename"]}", line {one["lineno"]}, in {one["name"]}' for one in row["frames"]]
            blocks.append("\n".join([*frames, f"{row['exc_type']}: {row['exc_value']}"]))
        entry["exception"] = "\n".join(blocks)
    return entry
