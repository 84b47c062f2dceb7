"""A server that is killed while a program uses it: what the error says, and what of an engine in this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import TransportError
from tests.contract.live import TOKENS, Live


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    connection.use(None)


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    server = Live("none", tmp_path)
    connection.use(HttpTransport(server.url, TOKENS["ann"], patience=1.0))
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    server.process.kill()
    server.process.wait(30)
    with pytest.raises(TransportError) as caught:
        (x + 1).asnumpy()
    sentence = re.fullmatch(
        re.escape(server.url)
        + r": the server there, whose last answer came (\d+) s ago, has ended or was killed: nothing has listened for "
        r"(\d+) s \(OPBOX_PATIENCE sets how long to try\); start it again with `opbox serve`; all arrays and executors "
        r"there are lost; fit\(checkpoint_every=…\) goes on from a checkpoint after a loss",
        str(caught.value),
    )
    assert sentence is not None, str(caught.value)
    assert int(sentence[2]) >= 1
    with pytest.raises(TransportError, match="all arrays and executors there are lost"):
        x.asnumpy()
    server.stop()


def test_a_server_that_is_killed_amid_a_call(tmp_path: Path) -> None:
    server = Live("none", tmp_path)
    connection.use(HttpTransport(server.url, TOKENS["ann"], patience=0))
    mx.refresh_operators()
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    slow = mx.nd._internal._test_slow(x, seconds=30)
    killer = threading.Thread(target=_kill_when_busy, args=(server,))
    killer.start()
    with pytest.raises(
        TransportError, match=r"has ended or was killed.*; all arrays and executors there are lost; fit"
    ):
        slow.asnumpy()
    killer.join(30)
    server.stop()


def _kill_when_busy(server: Live) -> None:
    while server.metric("opbox_requests_in_flight") < 2:  # this one and the slow one
        time.sleep(0.01)
    server.process.kill()


def test_a_fault_of_the_engine_in_this_process_shows_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import opbox as mx
from opbox_service.embedded import EmbeddedTransport
from opbox_service.session.command_runner import CommandRunner
transport = EmbeddedTransport()
mx.connection.use(transport)
x = mx.nd.ones((2,))
x.asnumpy()
def fail(*args, **kwargs):
    raise RecursionError("too deep")
CommandRunner.run = fail
x.asnumpy()
""")
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    ended = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60)
    assert "opbox_protocol.errors.InternalError: internal error: RecursionError: too deep" in ended.stderr
    assert 'raise RecursionError("too deep")' in ended.stderr
