"""Settings of a test run: the device, the element type, environment variables, repeated attempts."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..context import current_context, num_gpus

__all__ = [
    "default_context",
    "default_dtype",
    "discard_stderr",
    "environment",
    "has_tvm_ops",
    "is_aarch64_run",
    "is_cd_run",
    "is_op_runnable",
    "list_gpus",
    "retry",
    "set_default_context",
]

_default: Any = None


def default_context() -> Any:
    """The context that tests run in: what `set_default_context` said, else the current one."""
    return _default if _default is not None else current_context()


def set_default_context(ctx: Any) -> None:
    """Run tests on `ctx`; None returns to the current context."""
    global _default
    _default = ctx


def default_dtype() -> type[np.float32]:
    """The element type of arrays that tests make."""
    return np.float32


def list_gpus() -> range:
    """The numbers of the engine's GPUs."""
    return range(num_gpus())


def is_cd_run() -> bool:
    """Return whether the environment variable CD_JOB says that tests run for a release."""
    return os.environ.get("CD_JOB") == "1"


def is_aarch64_run() -> bool:
    """Return whether this machine has an ARM processor of 64 bits."""
    return platform.machine() == "aarch64"


def has_tvm_ops() -> bool:
    """Return whether there are operators that TVM has generated: False, as opbox has none."""
    return False


def is_op_runnable() -> bool:
    """Return whether the current context runs every operator: True, as none needs TVM."""
    return True


@contextlib.contextmanager
def environment(*args: Any) -> Iterator[None]:
    """Environment variables for the body of a `with`: a name and its value, or a dict of them; None removes one."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        wanted = dict(args[0])
    elif len(args) == 2:
        wanted = {args[0]: args[1]}
    else:
        raise TypeError("environment: expected a name and a value, or a dict")
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def discard_stderr() -> Iterator[None]:
    """Throw away what is written to standard error in the body of a `with`, by C code too."""
    stderr_copy = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)


def retry(n: int) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Decorator: a test that is random may fail up to `n` - 1 times."""
    if n <= 0:
        raise ValueError(f"retry: expected 1 or more, got {n}")

    def attach(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def attempts(*args: Any, **kwargs: Any) -> None:
            for attempt in range(n):
                try:
                    function(*args, **kwargs)
                    return
                except AssertionError:
                    if attempt == n - 1:
                        raise

        return attempts

    return attach
