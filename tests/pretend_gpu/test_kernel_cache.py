"""What a session with code finds compiled: the server's kernels, which it reads and never writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from opbox_ops.backend.kernel_cache import SHARED, read_shared_kernels
from opbox_service.settings import Settings
from opbox_service.worker import code_process, code_worker


@pytest.fixture
def compiler(cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """CuPy's compiler, in a process that has a folder of its own and reads two more, of which one is not there."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv(SHARED, os.pathsep.join(map(str, (tmp_path / "missing", tmp_path / "shared"))))
    module = cupy.cuda.compiler
    monkeypatch.setattr(module, "_kernel_cache_backend", module._kernel_cache_backend)
    read_shared_kernels(module)
    return module


def test_kernels_that_others_have_compiled_are_read(compiler: Any, tmp_path: Path) -> None:
    compiler._DiskKernelCacheBackend(str(tmp_path / "shared")).save("a.cubin", b"compiled", "source")
    assert compiler._kernel_cache_backend.load("a.cubin") == b"compiled"
    assert compiler._kernel_cache_backend.load("b.cubin") is None


def test_what_is_compiled_goes_to_its_own_folder(compiler: Any, tmp_path: Path) -> None:
    compiler._DiskKernelCacheBackend(str(tmp_path / "shared"))
    compiler._kernel_cache_backend.save("a.cubin", b"own", "source")
    assert os.listdir(tmp_path / "own") == ["a.cubin"]
    assert os.listdir(tmp_path / "shared") == []
    assert compiler._kernel_cache_backend.load("a.cubin") == b"own"


def test_a_damaged_kernel_is_compiled_again(compiler: Any, tmp_path: Path) -> None:
    compiler._DiskKernelCacheBackend(str(tmp_path / "shared")).save("a.cubin", b"compiled", "source")
    path = tmp_path / "shared" / "a.cubin"
    path.write_bytes(path.read_bytes()[:-1])
    assert compiler._kernel_cache_backend.load("a.cubin") is None


def test_a_session_with_code_is_told_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", "/server/kernels")
    monkeypatch.setenv(SHARED, "/image/kernels")
    for there in (True, False):
        monkeypatch.setattr(code_worker, "has_gpu", lambda settings, there=there: there)
        environment = code_worker.code_environment(Settings()) | code_process.homes(str(tmp_path))
        assert environment["CUPY_CACHE_DIR"] == str(tmp_path)
        if there:
            assert environment[SHARED].split(os.pathsep) == ["/server/kernels", "/image/kernels"]


def test_a_session_with_code_computes_as_the_others_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("OPBOX_ALLOW_TF32", "OPBOX_COMPUTE_LEVEL", "OPBOX_DISABLE", "OPBOX_CUDNN_TUNE")
    for name in (*names, "OPBOX_TOKEN"):
        monkeypatch.setenv(name, "set")
    monkeypatch.setenv("OPBOX_CUBINS", "cubins")
    environment = code_worker.code_environment(Settings(token="secret-of-8"))
    assert {name: environment.get(name) for name in names} == dict.fromkeys(names, "set")
    assert "OPBOX_TOKEN" not in environment
    assert code_worker._named_files() == [Path("cubins").absolute()]
    monkeypatch.setenv("OPBOX_CUDNN", "/opt/libcudnn.so.9")
    assert code_worker._named_files()[1:] == [Path("/opt/libcudnn.so.9")]


def test_a_session_with_code_gets_paths_that_hold_in_any_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPBOX_CUBINS", "build/cubins")
    for name, passed in (("lib/libcudnn.so", str(Path("lib/libcudnn.so").absolute())), ("libcudnn.so.9",) * 2):
        monkeypatch.setenv("OPBOX_CUDNN", name)
        environment = code_worker.code_environment(Settings())
        assert environment["OPBOX_CUBINS"] == str(Path("build/cubins").absolute())
        assert environment["OPBOX_CUDNN"] == passed
