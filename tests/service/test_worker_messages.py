"""Messages between the API process and a worker."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest

from opbox_service.buffers import INLINE
from opbox_service.worker import messages
from opbox_service.worker.answer_bundle import AnswerBundle


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


def answer(id: int, body: bytes) -> dict[str, Any]:
    return {"kind": "answer", "id": id, "status": 200, "size": len(body), "segment": None}


@pytest.mark.parametrize("size", [0, 100, INLINE])
def test_answers_of_one_run_leave_together_in_messages_of_bounded_size(size: int) -> None:
    sent: list[bytes] = []
    bundle = AnswerBundle(lambda message, body: sent.append(messages.write(message, body)))
    bodies = [bytes([id]) * size for id in range(200)]
    for id, body in enumerate(bodies):
        assert bundle.take(answer(id, body), body)
    bundle.send()
    bundle.send()  # of nothing is nothing
    assert max(map(len, sent)) <= messages.LARGEST
    came = []
    for header, inline in map(messages.read, sent):
        at = 0
        for one in header["answers"] if header["kind"] == "answers" else [header]:
            came.append((one["id"], bytes(inline[at : at + one["size"]])))
            at += one["size"]
        assert at == len(inline)
    assert came == list(enumerate(bodies))
    assert (len(sent) < len(bodies)) == (size < INLINE)


def test_an_answer_alone_is_a_message_as_ever_and_others_are_not_taken() -> None:
    sent: list[tuple[dict[str, Any], bytes]] = []
    bundle = AnswerBundle(lambda message, body: sent.append((message, body)))
    took: list[bool] = []
    elsewhere = threading.Thread(target=lambda: took.append(bundle.take(answer(1, b"x"), b"x")))
    elsewhere.start()
    elsewhere.join()
    assert took == [False]
    assert not bundle.take({**answer(2, b"x"), "problem": [["Error", "for the log"]]}, b"x")
    assert bundle.take(answer(3, b"x"), b"x")
    bundle.send()
    assert sent == [(answer(3, b"x"), b"x")]
