"""Runs a function without interruption by signals; their handlers run when it has ended.

shielded(session.hand_over, batch)      # Ctrl-C is raised before it or behind it, never in it

Python calls signal handlers in the main thread, between any two instructions, and what they raise (KeyboardInterrupt,
a time-out of SIGALRM) is raised there: behind a lock that was just taken, or a number that was just drawn. While a
shielded function runs, each handler is replaced by one that only notes the signal. Other threads need no shield, and
nothing is replaced for them.

Code of the user's that a shielded function calls, such as an operator's `forward`, is interrupted as ever.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

__all__ = ["calls_user_code", "interruptibly", "is_shielded", "shielded", "whole"]

P = ParamSpec("P")
T = TypeVar("T")

_signal = importlib.import_module("_signal")  # the functions of `signal` that make no enumerations of their results
_handler_of, _set_handler = _signal.getsignal, _signal.signal
_FAULTS = ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")
_LAST = getattr(signal, "SIGRTMIN", 65) - 1
_NUMBERS = tuple(
    sorted(int(n) for n in signal.valid_signals() - {getattr(signal, name, 0) for name in _FAULTS} if n <= _LAST)
)
"""The signals that are shielded; real-time signals do not interrupt programs."""
_OURS = ("opbox", "opbox_protocol", "opbox_ops", "opbox_service")
_INSTALLED = tuple({os.path.dirname(os.__file__) + os.sep, sys.prefix + os.sep, sys.base_prefix + os.sep})


class _Shield:
    """The signals that arrived while a shielded function runs.

    Attributes:
        postponed: the signals that came, in their order.
        on_interrupt: called when Ctrl-C is among them; takes no lock.
    """

    __slots__ = ("on_interrupt", "postponed")

    def __init__(self, on_interrupt: Callable[[], object] | None) -> None:
        self.postponed: deque[int] = deque()
        self.on_interrupt = on_interrupt


class _Postponing:
    """A signal handler that notes the signal while a shield is up, and is the original otherwise.

    It may stay for a moment after the shield, where the original could not be put back in time.
    """

    __slots__ = ("original",)

    def __init__(self, original: Callable[[int, FrameType | None], object]) -> None:
        self.original = original

    def __call__(self, number: int, frame: FrameType | None) -> None:
        shield = _active
        if shield is None or _in_user_code(frame):
            self.original(number, frame)
            return
        shield.postponed.append(number)
        if self.original is signal.default_int_handler and shield.on_interrupt is not None:
            shield.on_interrupt()


_active: _Shield | None = None
_main_thread = threading.main_thread().ident
_seen: tuple[Any, ...] = ()
_handlers: tuple[tuple[int, _Postponing], ...] = ()
_user_code_callers: set[CodeType] = set()


def shielded(function: Callable[..., T], *args: Any, on_interrupt: Callable[[], object] | None = None) -> T:
    """Call `function(*args)`; handle signals that arrive meanwhile after it.

    Args:
        function: short, or it can be stopped: nothing else interrupts it.
        args: its arguments.
        on_interrupt: called at once when Ctrl-C is pressed, between any two instructions of `function`.

    Raises:
        BaseException: what `function` raises, or the handler of a signal that came meanwhile.
    """
    global _active
    if threading.get_ident() != _main_thread or _active is not None:
        return function(*args)
    handlers = _postponing_handlers()
    if not handlers:
        return function(*args)
    shield = _active = _Shield(on_interrupt)
    try:
        for number, handler in handlers:
            _set_handler(number, handler)
        return function(*args)
    finally:
        # No handler runs between the function's end and this: from here on the handlers are the originals again.
        _active = None
        try:
            for number, handler in handlers:
                if _handler_of(number) is handler:  # no other was set meanwhile
                    _set_handler(number, handler.original)
        finally:
            if shield.postponed:
                _handle(shield.postponed)


def whole(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of this package that is to run whole or not at all: see `shielded`."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.get_ident() != _main_thread or _active is not None:
            return method(*args, **kwargs)
        return shielded(lambda: method(*args, **kwargs))

    return run


def is_shielded() -> bool:
    """Return whether the calling thread runs a shielded function."""
    return _active is not None and threading.get_ident() == _main_thread


def interruptibly(wait: Callable[..., T], *args: Any) -> T:
    """Return `wait(*args)`, which signals interrupt though the thread be shielded: a wait for what may never come."""
    global _active
    if not is_shielded():
        return wait(*args)
    shield, _active = _active, None
    try:
        if shield is not None and shield.postponed:
            _handle(shield.postponed)
        return wait(*args)
    finally:
        _active = shield


def calls_user_code(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that calls code of the user's: that code is interrupted though a shield be up."""
    _user_code_callers.add(function.__code__)
    return function


def _postponing_handlers() -> tuple[tuple[int, _Postponing], ...]:
    """The signals that have handlers in Python, with what replaces these."""
    global _seen, _handlers
    current = tuple(map(_handler_of, _NUMBERS))
    if current != _seen:
        _handlers = tuple(
            (number, handler if isinstance(handler, _Postponing) else _Postponing(handler))
            for number, handler in zip(_NUMBERS, current, strict=True)
            if callable(handler)
        )
        _seen = current
    return _handlers


def _handle(postponed: deque[int]) -> None:
    number = postponed.popleft()
    handler = signal.getsignal(number)
    try:
        if callable(handler):
            handler(number, sys._getframe(2))
    finally:  # the others, though one raises
        if postponed:
            _handle(postponed)


def _in_user_code(frame: FrameType | None) -> bool:
    """Return whether the code that a signal interrupts is the user's, called by ours."""
    users = False
    while frame is not None:
        code = frame.f_code
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS:
            return users or code in _user_code_callers
        users = users or not code.co_filename.startswith(("<", *_INSTALLED))
        frame = frame.f_back
    return True


def _after_fork_in_child() -> None:
    global _main_thread, _active
    _main_thread, _active = threading.get_ident(), None


os.register_at_fork(after_in_child=_after_fork_in_child)
