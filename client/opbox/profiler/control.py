"""Begin, end and write a profile: set_config, set_state, pause, resume, dump, dumps, and their old names."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

from opbox_protocol.errors import MXNetError

from ..base import user_level, value_text
from ..file_errors import file_errors, path_of
from .recording import RECORDING, THREADS, write_at_exit
from .statistics import SORT_KEYS

__all__ = [
    "dump",
    "dump_profile",
    "dumps",
    "pause",
    "profiler_set_config",
    "profiler_set_state",
    "resume",
    "set_config",
    "set_kvstore_handle",
    "set_state",
]

_KINDS = {"profile_symbolic": "symbolic", "profile_imperative": "imperative", "profile_api": "api"}
_FLAGS = (*_KINDS, "profile_all", "profile_memory", "continuous_dump", "aggregate_stats")
_OPTIONS = (*_FLAGS, "filename", "dump_period", "profile_process")
_TRUE, _FALSE = (True, 1, "1", "True", "true"), (False, 0, "0", "False", "false")


def set_config(**kwargs: Any) -> None:
    """Choose what is recorded and where it goes. What is not named has its default.

    Args:
        filename: the trace's file, "profile.json" by default.
        profile_symbolic: time the nodes of graphs on the engine; on by default.
        profile_imperative: time operators that are called one by one; on by default.
        profile_api: time the commands that the engine gets; on by default.
        profile_all: all of these, whatever the others say.
        aggregate_stats: keep sums for `dumps`; off by default.
        profile_memory, continuous_dump, dump_period: taken, and without effect: memory is not recorded, and the file is
            written by `dump` and when the process ends.
        profile_process: "worker"; there is no "server" of a kvstore.

    Raises:
        MXNetError: another option, or a value that is none of its.

    Example:
        >>> mx.profiler.set_config(profile_all=True, aggregate_stats=True, filename="lenet.json")
    """
    for name in kwargs:
        if name not in _OPTIONS:
            raise MXNetError(f"set_config: expected some of {', '.join(_OPTIONS)}, got {name!r}")
    flags = {"profile_symbolic": True, "profile_imperative": True, "profile_api": True}
    flags |= {name: _flag(name, value) for name, value in kwargs.items() if name in _FLAGS}
    _check_process("set_config: profile_process", kwargs.get("profile_process", "worker"), MXNetError)
    period = kwargs.get("dump_period", 1)
    try:
        float(period)
    except (TypeError, ValueError):
        raise MXNetError(f"set_config: dump_period: expected seconds, got {value_text(period)}") from None
    filename = os.fspath(path_of(kwargs.get("filename", "profile.json"), "set_config: filename"))
    every = flags.get("profile_all", False)
    RECORDING.kinds = frozenset(kind for name, kind in _KINDS.items() if every or flags[name])
    RECORDING.filename, RECORDING.aggregate = filename, flags.get("aggregate_stats", False)
    RECORDING.apply()


def _flag(name: str, value: Any) -> bool:
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise MXNetError(f"set_config: {name}: expected True or False, got {value_text(value)}")


def _check_process(subject: str, process: Any, refusal: type[Exception]) -> None:
    if process not in ("worker", "server"):
        raise refusal(f"{subject}: expected 'worker', got {value_text(process)}")
    if process == "server":
        raise MXNetError(f"{subject}: expected 'worker', got 'server', which a kvstore of several machines has")


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Begin to record with "run", end with "stop". It waits until the engine knows: one request to each session.

    Raises:
        KeyError: another state.
        MXNetError: the session has no memory for a profile (about 17 MB); `profile_process` is "server".
    """
    if state not in ("run", "stop"):
        raise KeyError(f"set_state: expected 'run' or 'stop', got {value_text(state)}")
    _check_process("set_state: profile_process", profile_process, KeyError)
    RECORDING.running, RECORDING.paused = state == "run", False
    RECORDING.started |= RECORDING.running
    RECORDING.apply()


def pause(profile_process: str = "worker") -> None:
    """Record nothing until `resume`."""
    _check_process("pause: profile_process", profile_process, KeyError)
    RECORDING.paused = True
    RECORDING.apply()


def resume(profile_process: str = "worker") -> None:
    """Continue after `pause`."""
    _check_process("resume: profile_process", profile_process, KeyError)
    RECORDING.paused = False
    RECORDING.apply()


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write the trace of what was recorded so far, a file that chrome://tracing and Perfetto read.

    An event of the category "operator" has its operator as `name`, `ts` and `dur` in microseconds, and, of a graph's
    node, `args` with `node` and `operator`. Steps that the engine has made one are one event, of the last of them.

    Args:
        finished: end recording; the next trace begins anew.
        profile_process: "worker".

    Raises:
        MXNetError: nothing was ever recorded, or the file cannot be written.

    Example:
        >>> mx.profiler.dump()
    """
    _check_process("dump: profile_process", profile_process, KeyError)
    if not RECORDING.started:
        raise MXNetError("dump: expected a profile that has run: call mx.profiler.set_state('run') first")
    RECORDING.collect()
    _write()
    if finished:
        set_state("stop")
        RECORDING.forget()


def _write() -> None:
    names = [*((pid, name) for pid, name in enumerate(RECORDING.devices)), (os.getpid(), "program")]
    labels = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in names]
    for pid, _ in names[:-1]:
        labels += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            for tid, name in enumerate(THREADS)
        ]
    path = path_of(RECORDING.filename, "dump: filename")
    events = [json.dumps(event) for event in (*labels, *RECORDING.events)]
    with file_errors(path, "written"):
        path.write_text('{"traceEvents": [\n' + ",\n".join(events) + '\n], "displayTimeUnit": "ms"}\n', "utf-8")


def dumps(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """Return counts and times by category and operator, if `aggregate_stats` is set; else an empty string.

    Args:
        reset: begin the sums anew afterwards.
        format: "table" or "json".
        sort_by: "total", "avg", "min", "max" or "count", within each category.
        ascending: the smallest first.

    Raises:
        AssertionError: a value that is none of these.

    Example:
        >>> print(mx.profiler.dumps(sort_by="avg"))
    """
    for name, value, choices in (
        ("format", format, ("table", "json")),
        ("sort_by", sort_by, SORT_KEYS),
        ("ascending", ascending, (False, True)),
        ("reset", reset, (False, True)),
    ):
        if value not in choices:
            expected = " or ".join(repr(choice) for choice in choices)
            raise AssertionError(f"dumps: {name}: expected {expected}, got {value_text(value)}")
    if not RECORDING.aggregate:
        return ""
    RECORDING.collect()
    key = next(key for key in SORT_KEYS if key == sort_by)
    sums = RECORDING.statistics
    text = sums.table(key, bool(ascending)) if format == "table" else sums.json(key, bool(ascending))
    if reset:
        sums.clear()
    return text


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"mx.profiler.{old} is an old name: call mx.profiler.{new}", stacklevel=user_level())


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """Do what `set_config` does, under its old name; `mode` is "symbolic", "imperative", "api", "memory" or "all"."""
    _deprecated("profiler_set_config", "set_config")
    set_config(**{f"profile_{mode}": True, "filename": filename})


def profiler_set_state(state: str = "stop") -> None:
    """Do what `set_state` does, under its old name."""
    _deprecated("profiler_set_state", "set_state")
    set_state(state)


def dump_profile() -> None:
    """Do what `dump` does, under its old name."""
    _deprecated("dump_profile", "dump")
    dump(True)


def set_kvstore_handle(handle: Any) -> None:
    """Do nothing: no kvstore here has servers to profile."""


write_at_exit(_write)
