"""Messages between the API process and a worker."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from opbox_service.worker import messages


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "call", "id": 1, "owner": "ann", "scopes": ["run"], "quota": [1, 2, 3, {"cpu": 4}], "weight": 0.5},
        {"kind": "call", "path": "/v1/ops/\u2028\U0001f600"},
        {"kind": "cancel", "error": {"error": "half a pair: \ud800", "detail": {"got": 1 << 80}}},
    ],
    ids=["call", "text", "what few writers of JSON take"],
)
def test_a_message_and_the_bytes_behind_it_arrive_as_they_were(message: dict[str, Any]) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        messages.send(here, messages.write(message, b"\0\1body"))
        received, descriptor = messages.receive(there)
    header, inline = messages.read(received)
    assert header == message
    assert bytes(inline) == b"\0\1body"
    assert descriptor is None


def test_a_descriptor_arrives_with_its_message_and_an_end_is_no_message() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = os.pipe()
    with there:
        with here:
            messages.send(here, messages.write({"kind": "answer"}), (theirs,))
        received, descriptor = messages.receive(there)
        assert messages.read(received)[0] == {"kind": "answer"}
        assert descriptor is not None
        os.close(theirs)
        os.write(descriptor, b"through")
        assert os.read(ours, 10) == b"through"
        os.close(descriptor)
        os.close(ours)
        assert messages.receive(there) == (b"", None)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        messages.read((3).to_bytes(4, "little") + b"}}}")
