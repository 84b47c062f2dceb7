"""Routes of the settings that clients of the Open Inference Protocol ask for: what is traced, and what is logged."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from opbox_protocol.errors import UnsupportedError

from ..carriers import Answer, Call, Done
from ..logs import LOGGER
from ..validation import Expected
from .health import Place
from .models import Body

__all__ = ["LogChange", "LogSettings", "TraceChange", "TraceSettings", "change_logging", "change_trace"]
__all__ += ["get_logging", "get_trace"]

OFF = Expected("OFF or null, as this server writes no traces")
Off: TypeAlias = Annotated[Literal["OFF"] | list[Literal["OFF"]] | None, OFF]
Unused: TypeAlias = Annotated[Literal["0"] | None, Expected('"0" or null, as this server writes no traces')]


class TraceSettings(BaseModel):
    """What is traced: nothing."""

    trace_level: list[Literal["OFF"]] = ["OFF"]
    trace_rate: str = "0"
    trace_count: str = "0"
    log_frequency: str = "0"
    trace_file: str = ""


class TraceChange(Body):
    """Settings of traces; only those that the server has anyway are taken."""

    trace_level: Off = None
    trace_rate: Unused = None
    trace_count: Unused = None
    log_frequency: Unused = None
    trace_file: Annotated[Literal[""] | None, Expected('"" or null, as this server writes no traces')] = None


class LogSettings(BaseModel):
    """What is logged, all of it on standard error, a JSON object a line."""

    log_file: str = ""
    log_info: bool = Field(description="OPBOX_LOG_LEVEL is info or debug.")
    log_warning: bool = Field(description="OPBOX_LOG_LEVEL is warning, info or debug.")
    log_error: bool = True
    log_verbose_level: int = Field(description="1 where OPBOX_LOG_LEVEL is debug.")
    log_format: str = "json"


class LogChange(Body):
    """Settings of the log; only those that the server has anyway are taken."""

    log_file: str | None = None
    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: int | None = None
    log_format: str | None = None


def get_trace(place: Place, call: Call, done: Done) -> None:
    """Tell what is traced: nothing."""
    if "model" in call.parameters:
        place.served_models.repository.resolve(call.parameters["model"], "", call.owner)
    done(Answer(TraceSettings().model_dump()))


def change_trace(place: Place, call: Call, done: Done) -> None:
    """Refuse to trace; settings that stay as they are, are taken."""
    get_trace(place, call, done)


def get_logging(place: Place, call: Call, done: Done) -> None:
    """Tell what is logged."""
    done(Answer(_log_settings()))


def change_logging(place: Place, call: Call, done: Done) -> None:
    """Refuse to log otherwise; settings that stay as they are, are taken."""
    now = _log_settings()
    for name, value in call.body.model_dump(exclude_unset=True, exclude={"inputs", "parameters"}).items():
        if value is not None and value != now[name]:
            raise UnsupportedError(
                f"{name}: expected {now[name]!r}, as the server was started with it, got {str(value)[:80]!r}: start it "
                "with another OPBOX_LOG_LEVEL; its log goes to standard error"
            )
    done(Answer(now))


def _log_settings() -> dict[str, Any]:
    level = logging.getLogger(LOGGER).level
    return LogSettings(
        log_info=level <= logging.INFO,
        log_warning=level <= logging.WARNING,
        log_verbose_level=int(level <= logging.DEBUG),
    ).model_dump()
