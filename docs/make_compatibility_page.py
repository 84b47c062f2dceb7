"""Write docs/compatibility.md: which of MXNet 1.9.1's public names opbox has, from a recorded list of them.

python docs/make_compatibility_page.py            # write
python docs/make_compatibility_page.py --check    # fail when it is not current
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opbox.absent import absence_reason

PAGE = Path(__file__).with_name("compatibility.md")
NAMES = Path(__file__).parent.parent / "tests" / "compat" / "mxnet_names.json"
HEADER = """# What of MXNet is there

Made by `make schema` from a recorded list of MXNet 1.9.1's public names; do not edit. A name is **the same** when
opbox has it with all arguments, methods and properties that MXNet's has. It **differs** when one of these is missing.
How values and behaviour differ is in [Differences from MXNet](differences.md).

"""


@dataclass(frozen=True)
class Row:
    """One public name of MXNet's.

    Attributes:
        state: "same", "differs" or "absent".
        why: what is missing, or why the name is.
    """

    name: str
    state: str
    why: str


def _parameters(function: Any) -> list[str] | None:
    """Names of a function's arguments; None when it takes any, or Python cannot tell."""
    try:
        taken = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return None
    return [one.name for one in taken]


def _missing_arguments(ours: Any, arguments: list[str] | None) -> list[str]:
    taken = _parameters(ours)
    return [name for name in arguments or () if taken is not None and name not in taken]


def _missing(thing: Any, recorded: dict[str, Any]) -> list[str]:
    """What a name lacks: arguments as `x=`, methods and properties as `.x`, their arguments as `.x(y=)`."""
    lacks = [f"{name}=" for name in _missing_arguments(thing, recorded.get("arguments"))]
    for name, arguments in recorded.get("members", {}).items():
        if not hasattr(thing, name):
            lacks.append(f".{name}")
        elif callable(getattr(thing, name)):
            lacks += [f".{name}({one}=)" for one in _missing_arguments(getattr(thing, name), arguments)]
    return lacks


def _module(name: str) -> Any:
    """Our module of a name; None without one."""
    try:
        return importlib.import_module(f"opbox.{name}")
    except ImportError:
        return None


def _row(module: str, name: str, recorded: dict[str, Any]) -> Row:
    ours = _module(module)
    if ours is None or not hasattr(ours, name):
        reasons = (absence_reason(*place) for place in [(_python_place(module), name), *_places(module)])
        return Row(name, "absent", next(filter(None, reasons), "not there yet"))
    lacks = _missing(getattr(ours, name), recorded)
    return Row(name, "differs", f"lacks {', '.join(lacks)}") if lacks else Row(name, "same", "")


def _python_place(module: str) -> str:
    """Where a module's names are here: those of `contrib.ndarray` are `ndarray.contrib`'s too."""
    return ".".join(reversed(module.split("."))) if module in ("contrib.ndarray", "contrib.symbol") else module


def _places(module: str) -> list[tuple[str, str]]:
    """A module and those that it lies in, as (package, name): ("contrib", "text"), ("", "contrib")."""
    parts = module.split(".")
    return [(".".join(parts[:end]), parts[end]) for end in reversed(range(len(parts)))]


def rows() -> dict[str, list[Row]]:
    """All names by module."""
    recorded: dict[str, dict[str, Any]] = json.loads(NAMES.read_text())
    return {
        module: [_row(module, name, described) for name, described in names.items()]
        for module, names in recorded.items()
    }


def page() -> str:
    """The page's text."""
    by_module = rows()
    lines = [HEADER, "| module | names | the same | differ | absent |", "|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for module, of_module in by_module.items():
        count = Counter(row.state for row in of_module)
        total += count
        lines.append(_counts(f"[{module}](#{module.replace('.', '')})", count))
    lines += [_counts("**all**", total), ""]
    for module, of_module in by_module.items():
        lines += [f"## {module}", ""]
        same = [f"`{row.name}`" for row in of_module if row.state == "same"]
        if same:
            lines += [f"The same: {', '.join(same)}.", ""]
        others = [row for row in of_module if row.state != "same"]
        if others:
            lines += ["| name | | |", "|---|---|---|"]
            lines += [f"| `{row.name}` | {row.state} | {_why(row)} |" for row in others]
            lines.append("")
    return "\n".join(lines)


def _why(row: Row) -> str:
    return row.why if row.state == "absent" else row.why.replace("lacks ", "lacks `", 1).replace(", ", "`, `") + "`"


def _counts(label: str, count: Counter[str]) -> str:
    return f"| {label} | {sum(count.values())} | {count['same']} | {count['differs']} | {count['absent']} |"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit("docs/compatibility.md is not current: run make schema")
    else:
        PAGE.write_text(text)
