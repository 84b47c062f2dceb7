"""What of the machine's memory is for what: more than there is cannot be asked for."""

from __future__ import annotations

import pytest

from opbox_service import memory_shares
from opbox_service.memory_shares import buffer_bytes, code_bytes, device_bytes, has_gpu, within_machine
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
