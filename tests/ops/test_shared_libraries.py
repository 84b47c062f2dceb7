"""NVIDIA's libraries are found with and without cuda-pathfinder; where one is nowhere, a sentence says so."""

from __future__ import annotations

import shutil
import sys
from ctypes.util import find_library
from pathlib import Path
from types import SimpleNamespace

import pytest

from opbox_ops.backend import failure
from opbox_ops.cuda import shared_libraries
from opbox_ops.cuda.shared_libraries import LibraryNotFoundError, load_library
from opbox_protocol.errors import UnsupportedError

NEW, OLD = "libopboxtest.so.13", "libopboxtest.so.12"
SOME_LIBRARY = find_library("m") or "libm.so.6"
"""A file name that the system's loader knows."""


@pytest.fixture(autouse=True)
def without_pathfinder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with no CUDA and no cuda-pathfinder; cuBLAS has a name that no machine has."""
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(shared_libraries, "_files", lambda name: [NEW, OLD])
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)


def put(file: Path) -> Path:
    """A library of that name; what is in it does not matter here."""
    [source] = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line][:1]
    file.parent.mkdir(parents=True)
    return Path(shutil.copy(source, file))


def test_the_system_s_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_libraries, "_files", lambda name: [SOME_LIBRARY])
    assert load_library("cublas")._name == SOME_LIBRARY


def test_the_folders_of_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(tmp_path / "nvidia/cublas/lib" / OLD)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_library("cublas")._name == str(tmp_path / "nvidia/cublas/lib" / OLD)


@pytest.mark.parametrize(("variable", "folder"), [("CUDA_PATH", "lib64"), ("CUDA_HOME", "lib")])
def test_cuda_s_own_folder(variable: str, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = put(tmp_path / folder / NEW)
    monkeypatch.setenv(variable, str(tmp_path))
    assert load_library("cublas")._name == str(file)


def test_the_first_name_that_is_somewhere_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new, old = put(tmp_path / "lib64" / NEW), put(tmp_path / "lib" / OLD)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert load_library("cublas")._name == str(new)
    new.unlink()
    assert load_library("cublas")._name == str(old)


def test_the_version_that_cupy_is_for_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    major = shared_libraries._Preferred.major
    try:
        for preferred, names in {
            13: ["libcufft.so.12", "libcufft.so.11"],
            12: ["libcufft.so.11", "libcufft.so.12"],
        }.items():
            shared_libraries.prefer(preferred)
            assert shared_libraries._files("cufft") == names
            assert shared_libraries._files("cudnn") == ["libcudnn.so.9"]
    finally:
        shared_libraries.prefer(major)


def test_pathfinder_comes_first_and_need_not_find_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, other = put(tmp_path / "first" / NEW), put(tmp_path / "cuda/lib64" / NEW)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))

    def load(name: str) -> SimpleNamespace:
        if not first.exists():
            raise RuntimeError(f"no {name}\nin many places")
        return SimpleNamespace(abs_path=str(first))

    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=None))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", SimpleNamespace(load_nvidia_dynamic_lib=load))
    assert load_library("cublas")._name == str(first)
    first.unlink()
    assert load_library("cublas")._name == str(other)


def test_a_library_that_is_nowhere() -> None:
    with pytest.raises(LibraryNotFoundError) as raised:
        load_library("cublas")
    error = failure.device_error(raised.value)
    assert isinstance(error, UnsupportedError)
    assert error.message == (
        f"a library of CUDA is missing ({NEW} or {OLD}: not found by cuda-pathfinder, the system's loader, in NVIDIA's "
        "wheels, or below CUDA_PATH): install all of them (pip install 'opbox-service[cuda13]')"
    )


def test_a_library_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = put(tmp_path / "lib64" / NEW)
    file.write_bytes(b"no library")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    with pytest.raises(LibraryNotFoundError, match=rf"^{NEW} or {OLD}: {file}: "):
        load_library("cublas")
