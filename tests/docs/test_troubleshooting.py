"""The sentences of docs/troubleshooting.md are those that the code says."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opbox as mx
from opbox_service.environment import check_environment
from tests.contract.live import TOKENS, Live

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
HEADINGS = re.findall(r"^### `(.*)`$", PAGE.read_text(encoding="utf-8"), re.M)
DATA = mx.sym.Variable("data")


def _wrong_shape() -> None:
    mx.sym.FullyConnected(DATA, num_hidden=10, name="fc1").infer_shape(data=(5, 144), fc1_weight=(10, 100))


def _wrong_parameter() -> None:
    with mx.name.NameManager():
        mx.sym.FullyConnected(DATA, num_hiden=3)


def _unreachable() -> None:
    session = mx.connect("http://127.0.0.1:9", "a-token-for-nobody")
    try:
        mx.nd.ones((2,)).asnumpy()
    finally:
        del session
        mx.disconnect()


PROVOKED: dict[str, Callable[[], Any]] = {
    "fc1 (": _wrong_shape,
    "module ": lambda: mx.sym.FullyConected,
    "fullyconnected0": _wrong_parameter,
    "Module:": lambda: mx.mod.Module(mx.sym.FullyConnected(DATA, num_hidden=3), data_names=["images"]),
    "reshape:": lambda: mx.nd.ones((2, 3)).reshape((4, 4)).asnumpy(),
    "http://": _unreachable,
    "OPBOX_WORKER:": lambda: check_environment(["OPBOX_WORKER"]),
}
"""What provokes a sentence in this process, by how its heading begins."""
ANSWERED: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "token: expected the header": ("/v1/ops", None, {}),
    "token: expected one": ("/v1/ops", "a-token-for-nobody", {}),
    "scope:": ("/metrics", TOKENS["ann"], {}),
    "body:": ("/v1/forward", TOKENS["ann"], {"Content-Length": str((64 << 20) + 1)}),
}
"""Path, token and headers of a request that is refused with a sentence."""


def _heading(beginning: str) -> str:
    (heading,) = [heading for heading in HEADINGS if heading.startswith(beginning)]
    return heading


def _plain(sentence: str) -> str:
    """The sentence without what differs from program to program: file and line, and code's quotes."""
    return re.sub(r"\w+\.py:\d+", "train.py:5", sentence).replace("`", "")


@pytest.mark.parametrize("beginning", PROVOKED)
def test_the_sentence_of_a_script(beginning: str) -> None:
    with pytest.raises((mx.MXNetError, AttributeError, ValueError)) as caught:
        PROVOKED[beginning]()
    assert _plain(str(caught.value)).removesuffix(" (train.py:5)") == _heading(beginning)


def test_the_sentences_of_a_server(tmp_path: Path) -> None:
    live = Live("none", tmp_path)
    try:
        for beginning, (path, token, headers) in ANSWERED.items():
            sent = {**headers, **({} if token is None else {"Authorization": f"Bearer {token}"})}
            connection = http.client.HTTPConnection(live.url.removeprefix("http://"), timeout=30)
            connection.putrequest("POST" if headers else "GET", path)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            assert json.loads(connection.getresponse().read())["error"] == _heading(beginning)
            connection.close()
    finally:
        assert live.stop() == 0


def test_all_are_provoked() -> None:
    assert {_heading(beginning) for beginning in (*PROVOKED, *ANSWERED)} == set(HEADINGS)
