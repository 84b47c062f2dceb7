"""What these tests are given: the pretend devices' state, fresh for each test."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from opbox_ops.cuda import shared_libraries
from opbox_ops.cudnn import library as cudnn_library
from tests.conftest import missing, pretend


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They run where CuPy finds the pretend GPU, which make test-gpu-pretend arranges."""
    there = pretend()
    for item in items:
        if "pretend_gpu" in item.path.parts:
            item.add_marker(pytest.mark.gpu)
            if not there:
                item.add_marker(pytest.mark.skip(reason="no pretend GPU: make test-gpu-pretend"))


@pytest.fixture
def gpu() -> Iterator[Any]:
    """`device`, with no error to come and no damage done; what the test wrote outside its memory fails it."""
    assert missing("gpu") is None
    module: Any = importlib.import_module("pretend_gpu.device")
    module.reset()
    yield module
    module.reset()
    module.check_guards()


@pytest.fixture
def cupy(gpu: Any) -> Any:
    """CuPy, on the pretend device."""
    return importlib.import_module("cupy")


@pytest.fixture
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's libraries are nowhere: `libcufft.so.none` is the name of cuFFT's."""
    pathfinder: Any = importlib.import_module("cuda.pathfinder")

    def absent(name: str) -> Any:
        raise pathfinder.DynamicLibNotFoundError(f"lib{name} is nowhere\nlooked in many places")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", absent)
    monkeypatch.setattr(shared_libraries, "_files", lambda name: [f"lib{name}.so.none"])
    # That there is no cuDNN is remembered: not for the tests behind this one.
    monkeypatch.setattr(cudnn_library._State, "handles", {})
