"""What people read of a GPU's self-check: which kernels are not used, and why."""

from __future__ import annotations

from opbox_ops import trust

__all__ = ["note", "sentences", "summary"]

_problems: dict[str, str] = {}
"""By device: why its check is not complete, or not kept."""


def note(device: str, problem: str) -> None:
    """Note why a device's check is not complete, or why its verdict cannot be kept; empty: it is, and can."""
    _problems[device] = problem


def sentences(device: str) -> list[str]:
    """What of a GPU this process does not use, and why; none where it uses all, or nothing was checked."""
    answers = trust.answers_of(device) or {}
    lines = [
        f"{_what(name)} not used{'' if dtype == trust.ANY_TYPE else f' for {dtype}'}: {reason}"
        for (name, dtype), reason in sorted(answers.items())
        if reason
    ]
    if problem := _problems.get(device):
        lines.append(f"{problem} (opbox gpu-selfcheck goes on with it; CuPy computes what is not checked)")
    return lines


def _what(name: str) -> str:
    return "everything but CuPy is" if name == trust.ANY_COMPUTE else f"{name} is"


def summary(device: str) -> str:
    """A line about a device's kernels, for people; empty for the CPU, which has none that are checked."""
    answers = trust.answers_of(device)
    if not device.startswith("gpu"):
        return ""
    if answers is None:
        return "kernels are used without a check (OPBOX_GPU_SELFCHECK_S=0, or OPBOX_COMPUTE_LEVEL)"
    names = {name for name, _ in answers if name != trust.ANY_COMPUTE}
    wrong = {name for (name, _), reason in answers.items() if reason} & names
    return "; ".join([f"{len(names) - len(wrong)} of {len(names)} kernels passed their check", *sentences(device)])
