"""A graph that an owner has sent is unknown to others by its hash, and nothing of it comes out."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from opbox_protocol.routes import GRAPH_PREFIX
from tests.contract.live import Got, Live, symbol, var

X = np.ones((2, 3), np.float32)
ASKED = {
    "infer_shape": lambda server, name, owner: server.call("POST", "/v1/infer_shape", {"graph": name}, owner=owner),
    "infer_type": lambda server, name, owner: server.call("POST", "/v1/infer_type", {"graph": name}, owner=owner),
    "forward": lambda server, name, owner: server.call("POST", "/v1/forward", {"graph": name}, {"x": X}, owner=owner),
    "backward": lambda server, name, owner: server.call("POST", "/v1/backward", {"graph": name}, owner=owner),
    "bind": lambda server, name, owner: server.session(owner).run(
        {"do": "bind", "id": 1, "graph": name, "args": {}, "outputs": [2]}
    ),
}


def without(answer: Got, key: str) -> tuple[int, str]:
    """An answer's status and text without the graph's own hash and the request's id."""
    return answer.status, str({**answer.header, "request_id": ""}).replace(key, "…")


@pytest.mark.parametrize("call", ASKED)
def test_a_hash_of_another_owner_is_answered_as_one_that_nobody_sent(server: Live, call: str) -> None:
    secret = f"only_ann_knows_{secrets.token_hex(8)}"
    graph = symbol(var(secret), ("relu", "y", {}, [0]))
    key = server.json("PUT", "/v1/graphs", {"graph": graph}).header["sha256"]
    nobody = secrets.token_hex(32)

    refused, unknown = (ASKED[call](server, GRAPH_PREFIX + name, "bob") for name in (key, nobody))
    assert refused.status == 404
    assert without(refused, key) == without(unknown, nobody)
    assert secret not in str(refused.header)
    own = server.call("POST", "/v1/infer_shape", {"graph": GRAPH_PREFIX + key, "shapes": {secret: [2]}})
    assert own.header["arg_names"] == [secret]


def test_two_owners_may_send_the_same_graph(server: Live) -> None:
    graph = symbol(var(f"x{secrets.token_hex(8)}"), ("relu", "y", {}, [0]))
    names = {
        server.json("PUT", "/v1/graphs", {"graph": graph}, owner=owner).header["sha256"] for owner in ("ann", "bob")
    }
    (key,) = names
    for owner in ("ann", "bob"):
        assert (
            server.call("POST", "/v1/infer_type", {"graph": GRAPH_PREFIX + key, "partial": True}, owner=owner).status
            == 200
        )
