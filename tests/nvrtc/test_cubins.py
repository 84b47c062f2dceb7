"""The folder of kernels that are compiled beforehand: each is there under the name that it is looked for by."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox_ops.cuda import build, cubins
from opbox_ops.cuda.nvrtc import missing
from opbox_ops.cuda.softmax import FORWARD

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


def test_kernels_are_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "KERNELS", [FORWARD])
    (tmp_path / f"{'0' * 32}.sm_90.cubin").write_bytes(b"of another version")
    assert build.build(tmp_path, ("sm_80", "sm_90")) == 6
    paths = {path.name: path for path in tmp_path.iterdir()}
    assert set(paths) == {
        cubins.cubin_name(FORWARD.source(dtype), FORWARD.options, architecture)
        for dtype in FORWARD.types
        for architecture in ("sm_80", "sm_90")
    }
    assert all(path.read_bytes()[:4] == b"\x7fELF" for path in paths.values())
    times = {name: path.stat().st_mtime_ns for name, path in paths.items()}
    build.build(tmp_path, ("sm_80", "sm_90"))
    assert {name: path.stat().st_mtime_ns for name, path in paths.items()} == times
