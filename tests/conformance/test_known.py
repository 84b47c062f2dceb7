"""Every operator that is known to differ from MXNet on drawn calls stands in docs/differences.md. Needs no MXNet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .known import DIFFERENT

TEXT = (Path(__file__).parents[2] / "docs" / "differences.md").read_text(encoding="utf-8")
PREFIX = re.compile(r"^_(contrib_|image_|linalg_|random_)?")


@pytest.mark.parametrize("op", sorted({op for op, _ in DIFFERENT}))
def test_what_differs_is_documented(op: str) -> None:
    name = PREFIX.sub("", op)
    parts = name.split("_")
    # A family may stand there with a star.
    names = [name, *("_".join([*parts[:k], r"\*"]) for k in range(1, len(parts)))]
    assert re.search(rf"(?<![A-Za-z0-9])_?({'|'.join(names)})(?![A-Za-z0-9_])", TEXT), (
        f"{op}: not in docs/differences.md"
    )
