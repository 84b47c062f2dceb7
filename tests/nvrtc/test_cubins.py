"""The folder of kernels that are compiled beforehand: each is there under the name that it is looked for by."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbox_ops.cuda import build, cubins
from opbox_ops.cuda.nvrtc import missing
from opbox_ops.cuda.softmax import FORWARD

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


def test_kernels_are_built_once(tmp_path: Path) -> None:
    (tmp_path / f"{'0' * 32}.sm_90.cubin").write_bytes(b"of another version")
    assert build.build(tmp_path, ("sm_80", "sm_90"), [FORWARD]) == 6
    paths = {path.name: path for path in tmp_path.iterdir()}
    assert set(paths) == {
        cubins.cubin_name(FORWARD.source(dtype), FORWARD.options, architecture)
        for dtype in FORWARD.types
        for architecture in ("sm_80", "sm_90")
    }
    assert all(path.read_bytes()[:4] == b"\x7fELF" for path in paths.values())
    times = {name: path.stat().st_mtime_ns for name, path in paths.items()}
    build.build(tmp_path, ("sm_80", "sm_90"), [FORWARD])
    assert {name: path.stat().st_mtime_ns for name, path in paths.items()} == times


def test_the_command_compiles_for_the_architectures_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main([str(tmp_path), "--architecture", "sm_90"], [FORWARD]) == 0
    assert capsys.readouterr().out == f"3 kernels for sm_90 in {tmp_path}\n"
    assert {path.suffixes[0] for path in tmp_path.iterdir()} == {".sm_90"}


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--help"], 0, "usage: python -m opbox_ops.cuda.build"),
        ([], 2, "the following arguments are required: FOLDER"),
        (["folder", "--architecture", "sm_9"], 2, "--architecture: expected one of sm_75, "),
    ],
)
def test_what_is_no_folder_makes_none(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        build.main(arguments)
    assert ended.value.code == status
    assert sentence in "".join(capsys.readouterr())
    assert list(tmp_path.iterdir()) == []
