"""The memory of the machine, with a control group's limit and without one, as in a container that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox_ops.backend import host_memory


@pytest.mark.parametrize(("limit", "expected"), [("max\n", None), (None, None), ("65536\n", 65536)])
def test_a_group_without_a_limit_has_the_machines_memory(
    limit: str | None, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit, "utf-8")
    monkeypatch.setattr(host_memory, "GROUPS", ((str(file), str(tmp_path / "memory.current")),))
    whole = host_memory._physical()
    assert host_memory.machine_memory() == (whole if expected is None else expected)
