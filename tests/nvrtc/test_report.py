"""What make kernels prints of opbox's own kernels: the assembler's figures, and the bytes that each moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox_ops.cuda.nvrtc import missing
from opbox_ops.cuda.softmax import FORWARD

from . import report

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


def test_our_kernels_are_listed_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report, "KERNELS", [FORWARD])
    assert report.main() == 0
    registers, moved = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(FORWARD.name))
    assert int(registers[1]) > 0
    assert float(moved[-1]) >= 1


def test_a_text_that_is_refused_fails_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "_includes", lambda: ())
    (tmp_path / "bad.cu").write_text('// []\nextern "C" __global__ void f(int *x) { x[0] = y; }\n', "utf-8")
    assert report.main(str(tmp_path)) == 1
    assert "refused: bad.cu: sm_80: " in capsys.readouterr().out
