"""Ids of sessions carry the name of their node, on a server that has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from opbox_service.session_ids import new_id, node_of
from opbox_service.settings import Settings
from tests.contract.live import Live


def test_an_id_says_its_node() -> None:
    assert re.fullmatch("[0-9a-f]{32}", new_id())
    assert node_of(new_id()) is None
    assert node_of(new_id("box7")) == "box7"
    assert new_id("a") != new_id("a")


@pytest.mark.parametrize(
    "id",
    [
        "",
        "a",
        "-" + 32 * "0",
        "a-" + 31 * "0",
        "a-" + 33 * "0",
        "A-" + 32 * "0",
        "a-b-" + 32 * "0",
        17 * "a" + "-" + 32 * "0",
        "a-" + 32 * "g",
        "a-" + 32 * "0" + "\n",
        "é-" + 32 * "0",
        "a-" + 32 * "٣",
    ],
)
def test_what_is_no_id_has_no_node(id: str) -> None:
    assert node_of(id) is None


@pytest.mark.parametrize("name", ["A", "a-b", 17 * "a", "a b", "é", "a\n"])
def test_a_bad_name_of_a_node_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="node"):
        Settings(node=name)


def test_a_node_of_a_cluster_opens_and_serves_such_sessions(tmp_path: Path) -> None:
    live = Live("none", tmp_path, OPBOX_NODE="box7")
    try:
        session = live.session()
        assert node_of(session.id) == "box7"
        assert session.run().status == 200
        assert [row["id"] for row in live.json("GET", "/v1/sessions").header["sessions"]] == [session.id]
        assert session.delete().header == {"deleted": session.id}
    finally:
        live.stop()
