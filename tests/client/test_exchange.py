"""The requests of one call, as gateways let them through: in parts, and asked for again. Nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from opbox.call_numbers import CallNumbers
from opbox.exchange import OutgoingCall, Request, exchange
from opbox.gateway import Gateway
from opbox.http_messages import Received, encode_call, read_reply
from opbox.repeated_calls import Attempts
from opbox_protocol.errors import LimitError, MXNetError, TransportError
from opbox_protocol.transport import Reply

ADDRESS = "http://box"
PATH = "/v1/sessions/s/commands"
X = np.arange(1 << 19, dtype=np.float32)
"""2 MiB."""


class Link:
    """One client's calls, and what it knows of the gateway."""

    def __init__(self, timeout: float = 600) -> None:
        self.gateway, self.numbers, self.timeout = Gateway(), CallNumbers(), timeout

    def call(self, attempts: Attempts | None = None, path: str = PATH) -> Generator[Request, Received, Reply]:
        headers, chunks = encode_call({"seq": 1}, {"x": X})
        if attempts is None:
            attempts = Attempts("POST", path, 30, self.numbers, gateway_met=self.gateway.met)
        call = OutgoingCall("POST", path, {}, headers, chunks, attempts, self.timeout, ADDRESS)
        return exchange(call, self.gateway, self.numbers, read)


def read(received: Received, request: Request) -> Reply | MXNetError:
    return read_reply(received, ADDRESS, request.method, request.path, request.sent, tls=False, reached=True)


def page(status: int) -> Received:
    """A gateway's own answer."""
    return Received(status, "", {"Content-Type": "text/html"}, bytearray(b"<html></html>"))


def answer(status: int = 200, **header: Any) -> Received:
    return Received(status, "", {"Content-Type": "application/json"}, bytearray(json.dumps(header).encode()))


ABOUT = answer(name="opbox", extensions=["opbox_body_parts"])


def body(request: Request) -> bytes:
    return b"".join(request.chunks)


def end(steps: Generator[Request, Received, Reply], received: Received) -> Reply:
    with pytest.raises(StopIteration) as stop:
        steps.send(received)
    reply: Reply = stop.value.value
    return reply


def test_a_body_that_a_gateway_refuses_goes_in_parts() -> None:
    link = Link()
    steps = link.call()
    whole = next(steps)
    assert "Opbox-Part" not in whole.headers
    assert steps.send(page(413)).path == "/v2"
    request, parts = steps.send(ABOUT), b""
    while True:
        assert request.headers["Opbox-Call"] == whole.headers["Opbox-Call"]
        assert request.headers["Opbox-Part"] == f"{len(parts)}/{whole.sent}"
        assert int(request.headers["Content-Length"]) == request.sent <= 1_000_000
        parts += body(request)
        if len(parts) == whole.sent:
            break
        request = steps.send(answer(202, received=len(parts)))
    assert parts == body(whole)
    travel = end(steps, answer(results=[])).travel
    assert travel is not None
    assert travel.sent == 2 * whole.sent
    assert next(link.call()).headers["Opbox-Part"] == f"0/{whole.sent}"  # the limit is known from now on


def test_a_smaller_limit_is_learnt_on_the_way() -> None:
    link = Link()
    steps = link.call()
    next(steps)
    steps.send(page(413))
    assert steps.send(ABOUT).sent == 1_000_000
    assert steps.send(page(413)).sent == 250_000
    again = steps.send(answer(202, received=250_000))
    assert again.headers["Opbox-Part"].startswith("250000/")
    for size in (60_000, 15_000):
        assert steps.send(page(413)).sent == size
    with pytest.raises(LimitError, match="takes no request of 15000 bytes"):
        steps.send(page(413))


def test_a_server_without_parts_gets_none() -> None:
    link = Link()
    for about in (
        answer(name="opbox", extensions=["binary_tensor_data"]),
        answer(404, error="no", type="NotFoundError"),
    ):
        link.gateway = Gateway()
        steps = link.call()
        sent = next(steps).sent
        steps.send(page(413))
        with pytest.raises(LimitError, match=f"takes no request of {sent} bytes"):
            steps.send(about)
        assert link.gateway.body_bytes is None


def test_a_server_that_loses_parts_gets_them_again_and_not_for_ever() -> None:
    link = Link()
    link.gateway.refused(1 << 20)
    steps = link.call()
    next(steps)
    assert steps.send(answer(202, received=1_000_000)).headers["Opbox-Part"].startswith("1000000/")
    for _ in range(3):  # it was started anew
        assert steps.send(answer(202, received=0)).headers["Opbox-Part"].startswith("0/")
    with pytest.raises(
        TransportError, match=r"expected it to take the parts of a body of 2097\d+ bytes, got 0 of them"
    ):
        steps.send(answer(202, received=0))


def test_a_call_that_still_runs_is_asked_for() -> None:
    link = Link()
    steps = link.call()
    request = next(steps)
    assert request.headers["Prefer"] == "wait=45"
    for _ in range(3):
        ask = steps.send(answer(202, running=1))
        assert (ask.sent, body(ask), ask.headers["Opbox-Part"]) == (0, b"", f"0/{request.sent}")
        assert ask.headers["Opbox-Call"] == request.headers["Opbox-Call"]
        assert ask.headers["Inference-Header-Content-Length"] == request.headers["Inference-Header-Content-Length"]
    assert end(steps, answer(results=[1])).header == {"results": [1]}


def test_the_time_of_a_gateway_is_learnt() -> None:
    link = Link()
    link.gateway.gave_up(20.0)
    assert next(link.call()).headers["Prefer"] == "wait=15"
    link.gateway.gave_up(60.0)
    assert link.gateway.wait_s == 15
    link.gateway.gave_up(0.01)
    assert link.gateway.wait_s == 1


def test_a_call_without_a_number_gets_one_when_a_gateway_gives_it_up() -> None:
    link = Link()
    attempts = Attempts("POST", "/v1/forward", 30, link.numbers)
    steps = link.call(attempts, "/v1/forward")
    assert "Opbox-Call" not in next(steps).headers
    with pytest.raises(TransportError, match="did not wait for its answer"):
        steps.send(page(504))
    assert {"Opbox-Call", "Prefer"} <= next(link.call(attempts, "/v1/forward")).headers.keys()
    assert {"Opbox-Call", "Prefer"} <= next(link.call(None, "/v1/forward")).headers.keys()


def test_what_runs_for_longer_than_the_timeout_is_given_up() -> None:
    steps = Link(timeout=0).call()
    next(steps)
    with pytest.raises(TransportError, match="no answer within 0 s; OPBOX_TIMEOUT sets how long to wait"):
        steps.send(answer(202, running=1))
