"""The memory of the machine, with a control group's limit and without one, as in a container that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox_ops.backend.host_memory import machine_memory, memory_in_use


@pytest.mark.parametrize(("limit", "expected"), [("max\n", None), (None, None), ("65536\n", 65536)])
def test_a_group_without_a_limit_has_the_machines_memory(
    limit: str | None, expected: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit, "utf-8")
    usage = tmp_path / "memory.current"
    usage.write_text("4096\n", "utf-8")
    groups = ((str(tmp_path / "none"), str(usage)), (str(file), str(usage)))
    whole = machine_memory(())
    assert machine_memory(groups) == (whole if expected is None else expected)
    in_use = memory_in_use(groups)
    if expected is None:
        assert 4096 < in_use < whole, "the machine's"
    else:
        assert in_use == 4096
