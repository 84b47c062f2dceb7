"""Addresses and tokens as people paste them: what is wrong with one is said, by the variable's name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import opbox as mx
from opbox import aio, connection
from opbox.http import HttpTransport
from opbox_protocol.errors import MXNetError, NotFoundError
from tests.contract.live import TOKENS, Live


@pytest.mark.parametrize("path", ["/v1", "/v2/", "/box"])
def test_a_path_that_the_server_has_not(live: Live, path: str) -> None:
    base, url = path.rstrip("/"), live.url + path
    sentence = (
        f"OPBOX_URL: expected the server's address, with a path only behind a proxy that has one, got {url}: the "
        f"server has no POST {base}/v1/sessions: leave the path out"
    )
    connection.use(HttpTransport(url, TOKENS["ann"]))
    try:
        with pytest.raises(NotFoundError) as caught:
            mx.nd.ones(2)
    finally:
        connection.use(None)
    assert str(caught.value) == sentence

    async def open_session() -> None:
        async with aio.connect(url, TOKENS["ann"]) as server, server.session():
            pass

    with pytest.raises(NotFoundError) as of_aio:
        asyncio.run(open_session())
    assert str(of_aio.value) == sentence


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("Bearer secret", "OPBOX_TOKEN: expected the token alone, got 'Bearer ' before it: leave that out"),
        ("secret\n", "OPBOX_TOKEN: expected the token alone, got spaces or a line's end beside it: drop them"),
        (" secret", "OPBOX_TOKEN: expected the token alone, got spaces or a line's end beside it: drop them"),
        ("sécret", "OPBOX_TOKEN: expected printable ASCII characters, got others"),
    ],
)
@pytest.mark.parametrize("connect", [HttpTransport, mx.serve.Client])
def test_what_is_no_token(connect: Any, token: str, sentence: str) -> None:
    with pytest.raises(MXNetError) as caught:
        connect("http://127.0.0.1:1", token)
    assert str(caught.value) == sentence
