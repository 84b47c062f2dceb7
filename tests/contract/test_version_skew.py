"""What a server says to a client of another version: it refuses what it does not know, and ignores nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.contract.live import Live

X = np.arange(4, dtype=np.float32)


def test_a_route_of_a_later_version_is_not_there(server: Live) -> None:
    answer = server.json("POST", "/v9/sessions", {})
    assert answer.status == 404
    assert "/v9/sessions" in answer.error


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ({"do": "teleport", "id": 1}, "teleport"),
        ({"do": "zeros", "ids": [1], "shape": [2], "dtype": "float32", "colour": "red"}, "colour"),
        ({"do": "zeros", "ids": [1], "shape": [2], "dtype": "float9"}, "float9"),
        ({"do": "invoke", "op": "FutureOperator", "inputs": [], "outputs": [1]}, "FutureOperator"),
    ],
)
def test_a_command_of_a_later_version_is_refused(server: Live, command: dict[str, object], named: str) -> None:
    session = server.session()
    answer = session.run(command)
    assert answer.status == 400
    assert named in answer.error
    session.seq = 0
    assert server.session().run({"do": "zeros", "ids": [1], "shape": [2], "dtype": "float32"}).status == 200


def test_a_field_of_a_later_version_is_refused(server: Live) -> None:
    answer = server.call("POST", "/v1/sessions", {"device": "cpu", "colour": "red"})
    assert answer.status == 400
    assert "colour" in answer.error


def test_what_a_client_asks_before_it_uses_extensions(server: Live) -> None:
    about = server.json("GET", "/v2").header
    assert {"opbox_zstd", "opbox_body_parts"} <= set(about["extensions"])


def test_the_page_names_these_extensions() -> None:
    text = (Path(__file__).parents[2] / "docs" / "upgrade.md").read_text("utf-8")
    assert "`opbox_zstd` and `opbox_body_parts`" in text
