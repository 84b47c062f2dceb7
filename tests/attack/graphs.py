"""The hash of another owner's graph: what comes out by it, and whether it tells that somebody sent the graph."""

from __future__ import annotations

import secrets

from opbox_protocol.routes import GRAPH_PREFIX
from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import symbol, var

__all__ = ["ATTACKS"]


def use_a_hash_of_another_owner(box: Box) -> Outcome:
    secret = f"secret_{secrets.token_hex(8)}"
    graph = symbol(var(secret), ("relu", "y", {}, [0]))
    key = box.live.json("PUT", "/v1/graphs", {"graph": graph}, owner="ann").header["sha256"]
    nobody = secrets.token_hex(32)
    statuses, leaks = {}, 0
    for name in (key, nobody):
        answers = [
            box.live.call("POST", path, {"graph": GRAPH_PREFIX + name}, owner="bob")
            for path in ("/v1/infer_shape", "/v1/infer_type", "/v1/forward", "/v1/backward")
        ]
        statuses[name] = [answer.status for answer in answers]
        leaks += sum(secret in str(answer.header) for answer in answers)
    same = statuses[key] == statuses[nobody]
    outcome = "answered as one that nobody sent" if same else f"answered {statuses[key]}, one of nobody's with 404"
    return Outcome(same and not leaks, f"{outcome}; {leaks} of 4 answers have the argument's name")


ATTACKS = [Attack("graph-of-another", "the hash of another owner's graph, to four routes", use_a_hash_of_another_owner)]
