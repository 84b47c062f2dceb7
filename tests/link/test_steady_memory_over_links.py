"""A session over a link that cuts leaves memory flat: of the server, which keeps answers, and of the program."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import numpy as np

from opbox.http import HttpTransport
from opbox.session import Session
from tests.contract.live import TOKENS, Live
from tests.link.proxy import Exchange, Fault, LinkProxy
from tests.service.test_steady_memory import resident

WARM, STEPS = 40, 80
SIDE = 400
"""A value of 625 KiB goes each way with each step: answers or requests that stay would be 50 MB in all."""
ALLOWED = 8 << 20
"""Bytes: allocators round up, and the server keeps the answers that are under way."""


def test_a_link_that_cuts_leaves_memory_flat(tmp_path: Path) -> None:
    live = Live("none", tmp_path)
    numbers = random.Random(5)

    def cut(exchange: Exchange) -> Fault | None:
        if not exchange.is_batch or numbers.random() > 0.08:
            return None
        return Fault(numbers.choice(["request", "answer"]), numbers.choice(["head", "body"]), numbers.random())

    try:
        host, port = live.url.removeprefix("http://").split(":")
        with LinkProxy((host, int(port)), fault=cut) as proxy:
            transport = HttpTransport(proxy.url, TOKENS["ann"])
            session = Session(transport, "cpu")
            session.record({"do": "zeros", "ids": [1], "shape": [SIDE, SIDE], "dtype": "float32"})
            pids = os.getpid(), live.process.pid
            for step in range(WARM + STEPS):
                values = np.full((SIDE, SIDE), step, np.float32)
                session.record({"do": "write", "id": 1, "tensor": ""}, values)
                assert (session.fetch(1).result() == step).all()
                if step == WARM:
                    gc.collect()
                    before = [resident(pid) for pid in pids]
            gc.collect()
            grown = [resident(pid) - size for pid, size in zip(pids, before, strict=True)]
            assert len(proxy.exchanges) > 1.04 * (WARM + STEPS)  # it has cut
            assert max(grown) < ALLOWED, grown
            session.close()
            transport.close()
    finally:
        assert live.stop() == 0
