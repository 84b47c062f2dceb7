"""Sessions at a server that a test starts for itself: one that ends, and one that ends idle sessions soon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import TransportError
from tests.contract.live import TOKENS, Live

pytestmark = pytest.mark.usefixtures("embedded")  # which closes the session that the test has opened


def test_a_server_that_ends_is_told(tmp_path: Path) -> None:
    server = Live("none", tmp_path)
    connection.use(HttpTransport(server.url, TOKENS["ann"], patience=0.1))
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    server.stop()
    with pytest.raises(TransportError):
        x.asnumpy()
    with pytest.raises(TransportError):
        (x + 1).asnumpy()


def test_an_idle_session_is_kept_alive(tmp_path: Path) -> None:
    server = Live("none", tmp_path, OPBOX_SESSION_TTL_S="0.6")
    connection.use(HttpTransport(server.url, TOKENS["ann"]))
    x = mx.nd.ones((2,))
    x.asnumpy()
    time.sleep(1.8)
    assert x.asnumpy().tolist() == [1, 1]
    mx.disconnect()
    server.stop()
