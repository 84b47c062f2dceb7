"""Kernels that were compiled beforehand: read by content and compute capability, and compiled where that fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda import kernel, softmax
from opbox_ops.cuda.cubins import FOLDER, OPTIONS, cubin_name
from opbox_service.executor import invoke

from .compiler import kernel_library

X = np.arange(6, dtype="f").reshape(2, 3)


@pytest.fixture
def folder(cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder of kernels, in a process that has made none."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(kernel, "_compiled", kernel._compiled.__wrapped__)
    return tmp_path


def compiled_texts(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that CuPy is asked to compile while softmax runs."""
    names: list[str] = []
    real = cupy.RawKernel

    def raw(source: str, name: str, options: Sequence[str]) -> Any:
        names.append(name)
        return real(source, name, options)

    monkeypatch.setattr(cupy, "RawKernel", raw)
    backend = backend_for("gpu:0")
    (out,) = invoke("softmax", {}, [backend.put(X)], backend=backend, random=backend.random(0))
    expected = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(backend.get(out), expected, rtol=1e-6)
    return names


def write(folder: Path, source: str, architecture: str, code: bytes | None = None) -> None:
    """Put the code of a text where softmax's is looked for."""
    options = softmax.FORWARD.options
    library = str(kernel_library(source, (*OPTIONS, *options))).encode()
    (folder / cubin_name(source, options, architecture)).write_bytes(library if code is None else code)


@pytest.mark.parametrize("architecture", ["sm_90", "sm_80", "sm_100", None])
def test_only_what_the_device_runs_is_read(
    folder: Path, cupy: Any, monkeypatch: pytest.MonkeyPatch, architecture: str | None
) -> None:
    if architecture is not None:
        write(folder, softmax.FORWARD.source("float32"), architecture)
    # The pretend device has compute capability 9.0.
    assert compiled_texts(cupy, monkeypatch) == ([] if architecture == "sm_90" else [softmax.FORWARD.name])


def test_code_of_another_text_is_not_read(folder: Path, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, softmax.FORWARD.source("float32") + "\n", "sm_90")
    write(folder, softmax.FORWARD.source("float64"), "sm_90")
    assert compiled_texts(cupy, monkeypatch) == [softmax.FORWARD.name]


def test_what_the_driver_refuses_is_compiled(folder: Path, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, softmax.FORWARD.source("float32"), "sm_90", b"\xff\xfe")
    assert compiled_texts(cupy, monkeypatch) == [softmax.FORWARD.name]
