"""What of the machine's memory is for what: more than there is cannot be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_service import memory_shares
from opbox_service.memory_shares import (
    CONTEXT_BYTES,
    buffer_bytes,
    code_bytes,
    device_bytes,
    gpu_bytes,
    has_gpu,
    within_machine,
)
from opbox_service.settings import Settings

GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 16 GiB, without a GPU."""
    monkeypatch.setattr(memory_shares, "machine_memory", lambda: 16 * GIB)
    monkeypatch.setattr(memory_shares.glob, "glob", lambda pattern: [])


def test_arrays_and_buffers_add_up_to_what_there_is() -> None:
    usual = Settings()
    assert device_bytes(usual) + buffer_bytes(usual) == 16 * GIB
    assert within_machine(usual) == usual
    asked = within_machine(Settings(max_device_bytes=15 * GIB, max_code_bytes=99 * GIB))
    assert (asked.max_device_bytes, asked.max_code_bytes) == (12 * GIB, 12 * GIB)
    fewer_buffers = within_machine(Settings(max_device_bytes=15 * GIB, max_buffer_bytes=GIB))
    assert fewer_buffers.max_device_bytes == 15 * GIB


def test_a_gpu_may_have_more_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_shares.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    asked = Settings(max_device_bytes=80 * GIB)
    assert has_gpu(asked)
    assert within_machine(asked).max_device_bytes == 80 * GIB
    assert within_machine(Settings(max_device_bytes=80 * GIB, devices=("cpu",))).max_device_bytes == 12 * GIB


def test_code_has_what_others_leave_and_never_nothing() -> None:
    assert code_bytes(Settings(), 4 * GIB) == 8 * GIB
    assert code_bytes(Settings(), 12 * GIB) == 12 * GIB // 16
    assert code_bytes(Settings(max_code_bytes=GIB), 12 * GIB) == GIB


@pytest.mark.parametrize(
    ("memory", "settings", "reserved"),
    [
        (80 * GIB, {}, 5 * GIB),  # a sixteenth: eight processes
        (10 * GIB, {}, 2 * CONTEXT_BYTES),  # the worker, and a session with code
        (10 * GIB, {"workers": 3}, 4 * CONTEXT_BYTES),
        (10 * GIB, {"workers": 3, "code_sessions": 0}, 3 * CONTEXT_BYTES),
        (40 * GIB, {"workers": "auto"}, 5 * CONTEXT_BYTES),
        (5 * GIB, {"workers": 8}, 5 * GIB // 4),  # never more than a quarter
        (10 * GIB, {"isolation": "none"}, 10 * GIB // 16),
    ],
)
def test_a_small_gpu_keeps_memory_for_the_server_s_processes(memory: int, settings: Any, reserved: int) -> None:
    assert memory - gpu_bytes(Settings(**settings), memory) == reserved


def test_the_operator_says_how_much_of_a_gpu_sessions_have() -> None:
    assert gpu_bytes(Settings(max_device_bytes=9 * GIB), 10 * GIB) == 9 * GIB
    assert gpu_bytes(Settings(max_device_bytes=99 * GIB), 10 * GIB) == 10 * GIB
