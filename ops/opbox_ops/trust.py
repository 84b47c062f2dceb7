"""Which GPU computes may be chosen: those that the self-check of this machine's devices found right.

`Op` asks for computes of opbox's own above the reference level on a GPU, and for no others: a compute for the CPU is
chosen as if this file were not there. Without a verdict (no check has run, or it is switched off) all are trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from .compute import CallSpec, ChooseRule, Kernel

__all__ = [
    "ANY_COMPUTE",
    "ANY_TYPE",
    "Answers",
    "answers_of",
    "choices",
    "compute_name",
    "element_type",
    "follow",
    "forget",
    "guarded",
    "is_trusted",
    "reason_against",
    "refuse",
]

ANY_COMPUTE = "*"
"""In place of a compute's name: the answer holds for all of them."""
ANY_TYPE = "*"
"""In place of an element type: the answer holds for all types."""
_FLOATS = ("float32", "float64", "float16", "bfloat16")
_PACKAGE = __package__ or ""

Answers = Mapping[tuple[str, str], str]
"""By compute and element type: why it is not trusted; empty where it is right."""

_answers: dict[str, Answers] = {}
"""By device: what its self-check found."""
_refused: frozenset[str] = frozenset()
_observer: Callable[[str, str], None] | None = None


def compute_name(op: str, function: Any) -> str | None:
    """Return the name of an operator's compute: operator and module; None for one that is not opbox's own.

    Example:
        >>> compute_name("softmax", rule)
        'softmax/cuda.softmax'
    """
    while isinstance(function, partial):
        function = function.func
    module = str(getattr(function, "__module__", ""))
    return f"{op}/{module.removeprefix(_PACKAGE + '.')}" if module.startswith(_PACKAGE + ".") else None


def element_type(call: CallSpec) -> str:
    """The type that a call is checked under: that of its first array of floating point, else of its first array."""
    names = [array.dtype.name for array in (*call.inputs, *call.outputs)]
    return next((name for name in names if name in _FLOATS), names[0] if names else "")


def guarded(name: str, rule: ChooseRule) -> ChooseRule:
    """A compute's rule that takes no call for which the compute is not trusted."""

    def choose(p: Any, call: CallSpec) -> Kernel | None:
        if (_answers or _refused) and not is_trusted(name, element_type(call)):
            return None
        kernel = rule(p, call)
        if kernel is not None and _observer is not None:
            _observer(name, element_type(call))
        return kernel

    return choose


def is_trusted(name: str, dtype: str) -> bool:
    """Return whether a compute may run calls of a type: on every device of this process that has been checked.

    A compute that has no answer at all is not trusted: the check has not come to it. A type without an answer of its
    own follows the compute's other types.
    """
    return name not in _refused and all(not reason_against(answers, name, dtype) for answers in _answers.values())


def reason_against(answers: Answers, name: str, dtype: str) -> str:
    """Why a device's answers speak against a compute for a type; empty if they do not."""
    whole = answers.get((ANY_COMPUTE, ANY_TYPE)) or answers.get((name, ANY_TYPE))
    if whole:
        return whole
    own = answers.get((name, dtype))
    if own is not None:
        return own
    others = [reason for (other, _), reason in answers.items() if other == name]
    return next(filter(None, others), "") if others else "not checked yet"


def follow(device: str, answers: Answers) -> None:
    """From now on choose by a device's answers, beside those of other devices of this process."""
    _answers[device] = answers


def refuse(names: Iterable[str]) -> None:
    """Choose none of these computes, and all others as ever: for the process of the check itself."""
    global _refused
    _refused = frozenset(names)


def forget() -> None:
    """Trust everything again."""
    _answers.clear()
    refuse(())


def answers_of(device: str) -> Answers | None:
    """What a device's self-check found; None where there is no verdict."""
    return _answers.get(device)


@contextmanager
def choices(observer: Callable[[str, str], None]) -> Iterator[None]:
    """The block in which `observer` hears the compute and the type of each guarded choice of this process."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before
