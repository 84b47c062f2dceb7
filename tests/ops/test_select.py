"""Why a device is not available, in one sentence with what to do: 501."""

from __future__ import annotations

import ctypes
import platform
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from opbox_ops.backend import select
from opbox_ops.backend.select import backend_for
from opbox_protocol.errors import UnsupportedError


class DriverError(RuntimeError):
    """As CuPy's, with CUDA's number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}: what CUDA says\nand more of it")
        self.status = status


class DynamicLibNotFoundError(RuntimeError):
    """As cuda-pathfinder's."""


class DynamicLibUnknownError(DynamicLibNotFoundError):
    """As cuda-pathfinder's."""


def banner(error: ImportError) -> ImportError:
    """What CuPy makes of an error at its import."""
    wrapped = ImportError(f"\n=====\nFailed to import CuPy.\n\nOriginal error: {error}\n=====\n")
    wrapped.__cause__ = error
    return wrapped


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ModuleNotFoundError("No module named 'cupy'", name="cupy"), r"CuPy is not installed \(pip install"),
        (
            ImportError("libcublas.so.13: cannot open"),
            r"a library of CUDA is missing \(libcublas.*\): install all of them",
        ),
        (DynamicLibNotFoundError("nvrtc\nsearched in"), r"a library of CUDA is missing \(nvrtc\): install all"),
        (DynamicLibUnknownError("nvrtc"), r"a library of CUDA is missing \(nvrtc\): install all"),
        (
            banner(ImportError("libcudart.so.13: cannot open shared object file: No such file or directory")),
            r"a library of CUDA is missing \(libcudart.so.13: cannot open.*\): install all of them",
        ),
        (
            banner(ImportError("numpy.core.multiarray failed to import")),
            r"CuPy cannot be imported \(numpy.core.multiarray failed to import\): install it anew \(pip",
        ),
        (DriverError(35), r"the driver is too old for CuPy \(it takes CUDA up to 12.4\): install one from 580 on"),
        (DriverError(100), "this machine has no GPU that CUDA may use: look at nvidia-smi"),
        (DriverError(101), "this machine has fewer GPUs: name one that nvidia-smi lists"),
        (DriverError(999), "CUDA error 999: what CUDA says;"),
    ],
)
def test_a_device_that_is_not_there_says_why(error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(number: int) -> None:
        raise error

    monkeypatch.setattr(select, "_driver_version", lambda: "12.4")
    monkeypatch.setitem(sys.modules, "opbox_ops.backend.cupy", SimpleNamespace(CupyBackend=backend))
    with pytest.raises(UnsupportedError, match=f"^device 'gpu:7' is not available: {sentence}") as caught:
        backend_for("gpu:7")
    assert "\n" not in caught.value.message
    assert caught.value.message.endswith(
        f"; an NVIDIA GPU is needed in the machine that computes, which is {platform.node()!r}: use mx.cpu(), or a "
        "server on a machine that has one"
    )


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (2, "the GPU has too little free memory for another process"),
        (46, "another process has the GPU for itself"),
        (802, "the GPUs are not ready: start nvidia-fabricmanager"),
        (803, r"the NVIDIA driver in the kernel and its library \(libcuda.so.1\) have different versions: restart"),
        (804, r"CUDA's compatibility package \(cuda-compat\) does not take this GPU"),
        (805, r"the MPS server \(CUDA_MPS_PIPE_DIRECTORY\) does not answer"),
    ],
)
def test_a_gpu_that_does_not_work_says_what_to_mend(
    status: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backend(number: int) -> None:
        raise DriverError(status)

    monkeypatch.setitem(sys.modules, "opbox_ops.backend.cupy", SimpleNamespace(CupyBackend=backend))
    with pytest.raises(UnsupportedError, match=f"^device 'gpu:5' is not available: {sentence}") as caught:
        backend_for("gpu:5")
    assert "\n" not in caught.value.message
    assert caught.value.message.endswith(
        f"; until then use mx.cpu() (the machine that computes is {platform.node()!r})"
    )


def test_the_driver_s_version_is_read_from_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(number: Any) -> int:
        number._obj.value = 12040
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=version))
    assert select._driver_version() == "12.4"


def test_no_driver_is_not_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(number: int) -> None:
        raise DriverError(35)

    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    monkeypatch.setitem(sys.modules, "opbox_ops.backend.cupy", SimpleNamespace(CupyBackend=backend))
    with pytest.raises(UnsupportedError, match=r"there is no NVIDIA driver here .*--gpus all"):
        backend_for("gpu:6")
