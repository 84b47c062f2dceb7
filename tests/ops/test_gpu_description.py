"""The line of a machine's GPUs: what there is, or in one sentence why it cannot be used."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from opbox_ops.backend import driver_probe, gpu_description

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with the files of one GPU and a CuPy for CUDA 13."""
    monkeypatch.setattr(gpu_description.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.setattr(gpu_description, "_cupy_major", lambda: 13)
    gpu_description.gpu_description.cache_clear()
    yield
    gpu_description.gpu_description.cache_clear()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"status": 0, "version": 13000, "names": [H100]}, f"{H100} (driver for CUDA 13.0)"),
        ({"status": 0, "version": 13020, "names": [H100] * 2}, f"2 x {H100} (driver for CUDA 13.2)"),
        (
            {"status": 0, "version": 12040, "names": [H100]},
            f"{H100}: not usable: the driver is too old for CuPy (it takes CUDA up to 12.4): install one from 580 on "
            "for CUDA 13, or 'opbox-service[cuda12]'",
        ),
        (
            {"status": 100, "version": 13000, "names": []},
            "not usable: this machine has no GPU that CUDA may use: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
        ),
        (
            {"status": 803, "version": 13000, "names": []},
            "not usable: the NVIDIA driver in the kernel and its library (libcuda.so.1) have different versions: "
            "restart the machine, or install both from one release",
        ),
        ({"status": 999, "version": 13000, "names": []}, "not usable: CUDA error 999"),
        (
            {"status": None, "version": 0, "names": []},
            "not usable: there is no NVIDIA driver here (libcuda.so.1): install one from 580 on, or start the "
            "container with the host's GPUs (docker run --gpus all, by the NVIDIA container toolkit)",
        ),
        (None, "not usable: the NVIDIA driver does not answer: look at nvidia-smi and dmesg"),
    ],
)
def test_the_line(answer: Any, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_description, "_asked", lambda: answer)
    assert gpu_description.gpu_description() == (line, "not usable" in line)


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_description, "_asked", lambda: {"status": 0, "version": 13000, "names": [H100]})
    monkeypatch.setattr(gpu_description, "_cupy_major", lambda: None)
    line = f"{H100}: not usable: CuPy is not installed (pip install 'opbox-service[cuda13]')"
    assert gpu_description.gpu_description() == (line, True)


def test_a_machine_without_a_gpu_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_description.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(gpu_description, "_asked", lambda: {"status": None, "version": 0, "names": []})
    assert gpu_description.gpu_description() == ("", False)


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "print('no JSON')", "import os; os.abort()"])
def test_a_driver_that_ends_the_process_that_asks_it(program: str) -> None:
    assert gpu_description._asked((sys.executable, "-I", "-S", "-c", program)) is None


def test_a_driver_that_does_not_answer() -> None:
    assert gpu_description._asked((sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"), 0.05) is None


def test_the_question_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def number(value: int) -> Any:
        def write(place: Any, *_: Any) -> int:
            place._obj.value = value
            return 0

        return write

    def name(buffer: Any, size: int, device: Any) -> int:
        buffer.value = H100.encode()
        return 0

    driver = SimpleNamespace(
        cuDriverGetVersion=number(13000),
        cuInit=lambda flags: 0,
        cuDeviceGetCount=number(2),
        cuDeviceGet=number(0),
        cuDeviceGetName=name,
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert driver_probe.asked() == {"status": 0, "version": 13000, "names": [H100, H100]}
    driver.cuInit = lambda flags: 803
    assert driver_probe.asked() == {"status": 803, "version": 13000, "names": []}
