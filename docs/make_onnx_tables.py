"""Writes the tables of docs/onnx.md, the operators that mx.onnx converts; --check compares them with the converters."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from opbox.onnx import export, reading
from opbox.onnx.exporting import EXPORTERS, Exporter
from opbox.onnx.importing import IMPORTERS, Importer

PAGE = Path(__file__).resolve().parent / "onnx.md"
MARKED = re.compile(r"(<!-- (written|read): [^>]*-->\n).*?(?=<!-- |\Z)", re.DOTALL)


def table(converters: dict[str, Exporter] | dict[str, Importer], head: str) -> str:
    """Operators by the file of their converter."""
    families: dict[str, list[str]] = {}
    for name, function in converters.items():
        families.setdefault(function.__module__.rpartition(".")[2], []).append(name)
    rows = [
        f"| {family} | {', '.join(f'`{n}`' for n in sorted(names))} |" for family, names in sorted(families.items())
    ]
    return "\n".join(["", f"| family | {head} |", "|---|---|", *rows, "", ""])


def page(text: str) -> str:
    """The page with its tables."""
    tables = {
        "written": table(EXPORTERS, "operators that are written"),
        "read": table(IMPORTERS, "ONNX's operators that are read"),
    }
    return MARKED.sub(lambda match: match[1] + tables[match[2]], text).rstrip() + "\n"


if __name__ == "__main__":
    assert export.__all__
    assert reading.__all__
    now = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv:
        PAGE.write_text(page(now), encoding="utf-8")
    elif page(now) != now:
        sys.exit("docs/onnx.md: expected the converters' tables, got others: run python docs/make_onnx_tables.py")
