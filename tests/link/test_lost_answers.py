"""A training over a link that loses requests and answers ends with the bits of an undisturbed one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import GoneError, TransportError
from tests.contract.live import TOKENS, Live
from tests.link.proxy import Exchange, Fault, LinkProxy

STEPS = 8
DATA, HIDDEN = 40, 4096
"""The weight has 640 KiB: its answer travels in many pieces, and its request is larger than what a socket takes."""


@pytest.fixture(scope="module", params=["none", "process"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live(request.param, tmp_path_factory.mktemp("link"))
    yield server
    assert server.stop() == 0


def target(live: Live) -> tuple[str, int]:
    host, port = live.url.removeprefix("http://").split(":")
    return host, int(port)


def train(url: str, patience: float = 30.0) -> bytes:
    """The bits of a few steps whose gradients are read each time, and of the weights at their end."""
    connection.use(HttpTransport(url, TOKENS["ann"], patience=patience))
    try:
        random_numbers = np.random.default_rng(0)
        net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=HIDDEN, name="fc")
        net = mx.sym.LinearRegressionOutput(mx.sym.mean(net, axis=1), mx.sym.var("y"))
        executor = net.simple_bind(mx.cpu(), x=(8, DATA), y=(8,), grad_req={"fc_weight": "write", "fc_bias": "write"})
        weight, gradient = executor.arg_dict["fc_weight"], executor.grad_dict["fc_weight"]
        weight[:] = random_numbers.standard_normal((HIDDEN, DATA)).astype(np.float32)
        read = b""
        for _ in range(STEPS):
            executor.arg_dict["x"][:] = random_numbers.standard_normal((8, DATA)).astype(np.float32)
            executor.forward(is_train=True)
            executor.backward()
            mx.nd.sgd_mom_update(weight, gradient, mx.nd.ones_like(weight), lr=0.1, momentum=0.9, out=weight)
            read += executor.outputs[0].asnumpy().tobytes()
        return read + weight.asnumpy().tobytes()
    finally:
        connection.use(None)


@pytest.fixture(scope="module")
def undisturbed(live: Live) -> bytes:
    return train(live.url)


def nth(number: int, fault: Fault) -> Callable[[Exchange], Fault | None]:
    """The fault for the batches from one number on, every third of them."""
    count = 0

    def choose(exchange: Exchange) -> Fault | None:
        nonlocal count
        count += exchange.is_batch
        return fault if exchange.is_batch and count >= number and (count - number) % 3 == 0 else None

    return choose


@pytest.mark.parametrize("kind", ["reset", "close"])
@pytest.mark.parametrize("part", ["head", "body"])
@pytest.mark.parametrize("at", [0.0, 0.5, 0.98])
@pytest.mark.parametrize("where", ["request", "answer"])
def test_cuts(live: Live, undisturbed: bytes, where: Any, at: float, part: Any, kind: Any) -> None:
    """Nothing of the answer's head, at 0.0, is the cut between a request and its answer."""
    with LinkProxy(target(live), fault=nth(2, Fault(where, part, at, kind))) as proxy:
        assert train(proxy.url) == undisturbed


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="twice"),
        Fault("answer", "body", 0.3, "stall", 0.3),
        Fault("request", "body", 0.3, "stall", 0.3),
        Fault("request", kind=502),
        Fault("answer", kind=502),
        Fault("answer", kind=504),
    ],
    ids=["twice", "slow-answer", "slow-request", "502-before", "502-after", "504"],
)
def test_gateways_and_stalls(live: Live, undisturbed: bytes, fault: Fault) -> None:
    with LinkProxy(target(live), fault=nth(2, fault)) as proxy:
        assert train(proxy.url) == undisturbed
    assert not live.json("GET", "/v1/sessions").header["sessions"]


@pytest.mark.parametrize("seed", range(4))
def test_cuts_at_random(live: Live, undisturbed: bytes, seed: int) -> None:
    """A third of all exchanges, the opening of the session among them."""
    numbers = random.Random(seed)

    def choose(exchange: Exchange) -> Fault | None:
        if numbers.random() > 1 / 3:
            return None
        where, part = numbers.choice(["request", "answer"]), numbers.choice(["head", "body"])
        return Fault(where, part, numbers.random(), numbers.choice(["reset", "close"]))

    with LinkProxy(target(live), fault=choose) as proxy:
        assert train(proxy.url) == undisturbed


def test_a_link_that_stays_cut_ends_in_one_sentence(live: Live) -> None:
    with LinkProxy(target(live), fault=nth(3, Fault("answer", "head", 0.5))) as proxy:
        before = proxy.fault
        proxy.fault = lambda exchange: Fault("answer", "head", 0.5) if len(proxy.exchanges) > 4 else before(exchange)
        with pytest.raises(
            TransportError, match=r"tried \d+ times in \d s \(OPBOX_PATIENCE sets how long to try\)"
        ) as e:
            train(proxy.url, patience=1.0)
    assert "\n" not in str(e.value)


def batch(live: Live, path: str, number: int, body: dict[str, Any], answered: int = 0) -> httpx.Response:
    """A numbered call as a client of one's own makes it."""
    headers = {"Opbox-Call": f"me/{number}"} | ({"Opbox-Answered": f"me/{answered}"} if answered else {})
    return live.clients["ann"].post(path, json=body, headers=headers)


def test_the_protocol(live: Live) -> None:
    session = live.session()
    path = f"{session.path}/commands"
    put = {"commands": [{"do": "zeros", "ids": [1], "shape": [2], "dtype": "float32"}]}
    fetch = {"commands": [{"do": "fetch", "id": 1, "as": "x"}]}
    add = {"commands": [{"do": "invoke", "op": "_plus_scalar", "attrs": {"scalar": "1"}, "inputs": [1], "into": True}]}
    add["commands"][0]["outputs"] = [1]
    assert batch(live, path, 1, put).status_code == 200
    assert batch(live, path, 2, add).status_code == 200
    for _ in range(3):  # it runs once
        assert batch(live, path, 2, add).status_code == 200
    values = batch(live, path, 3, fetch, answered=2).json()["outputs"][0]["data"]
    assert values == [1.0, 1.0]
    assert batch(live, path, 3, fetch).json()["outputs"][0]["data"] == values
    gone = batch(live, path, 2, add)
    assert (gone.status_code, gone.json()["type"]) == (410, "GoneError")
    missing = {"commands": [{"do": "fetch", "id": 99, "as": "x"}]}
    assert batch(live, path, 4, missing).json() | {"request_id": ""} == batch(live, path, 4, missing).json() | {
        "request_id": ""
    }
    other = live.session()
    wrong = batch(live, f"{other.path}/commands", 4, put)
    assert wrong.status_code == 400
    assert "Opbox-Call: expected a new number" in wrong.json()["error"]
    bad = live.clients["ann"].post(path, json=fetch, headers={"Opbox-Call": "me"})
    assert bad.status_code == 400
    assert "expected a client's name" in bad.json()["error"]
    bob = live.clients["bob"].post(path, json=fetch, headers={"Opbox-Call": "me/3"})
    assert bob.status_code == 404  # somebody else's numbers are others
    for one in (session, other):
        one.delete()


def test_a_call_is_asked_for_again_while_it_runs(live: Live) -> None:
    """The connection ends in mid-call, which goes on; the second connection gets the answer of the first."""
    session = live.session()
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=np.zeros(2, np.float32)).status == 200
    slow = {"do": "invoke", "op": "_test_slow", "attrs": {"seconds": "1.0"}, "inputs": [1], "outputs": [2]}
    body = {"commands": [slow, {"do": "fetch", "id": 2, "as": "x"}]}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{live.url}{session.path}/commands",
            json=body,
            headers={"Opbox-Call": "me2/1", "Authorization": f"Bearer {TOKENS['ann']}"},
            timeout=0.4,
        )
    answer = live.clients["ann"].post(f"{session.path}/commands", json=body, headers={"Opbox-Call": "me2/1"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == [0.0, 0.0]
    assert live.json("GET", session.path).header["next_seq"] == 3
    session.delete()


def test_answers_are_kept_within_a_limit(tmp_path: Any) -> None:
    live = Live("none", tmp_path, OPBOX_MAX_KEPT_BYTES=str(256 << 10))
    try:
        session = live.session()
        path = f"{session.path}/commands"
        x = np.zeros(25_000, np.float32)
        assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=x).status == 200
        headers = {"Accept": "application/octet-stream"}

        def fetch(number: int) -> httpx.Response:
            body = {"commands": [{"do": "fetch", "id": 1, "as": "x"}]}
            return live.clients["ann"].post(path, json=body, headers={"Opbox-Call": f"me/{number}", **headers})

        for number in range(1, 21):
            assert fetch(number).status_code == 200
        assert [fetch(number).status_code for number in (18, 19, 20)] == [410, 200, 200]
        assert "OPBOX_MAX_KEPT_BYTES" in json.loads(fetch(1).content)["error"]
        session.delete()
    finally:
        live.stop()


def test_a_lost_answer_that_is_not_kept_ends_in_one_sentence(tmp_path: Any) -> None:
    live = Live("none", tmp_path, OPBOX_MAX_KEPT_BYTES="0")
    try:
        with (
            LinkProxy(target(live), fault=nth(3, Fault("answer", "body", 0.5))) as proxy,
            pytest.raises(GoneError, match="OPBOX_MAX_KEPT_BYTES"),
        ):
            train(proxy.url)
    finally:
        live.stop()
