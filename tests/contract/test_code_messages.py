"""Code that writes to its process's connection: its own session ends with one sentence, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.box import Box
from tests.attack.code_messages import NEEDS, list_brackets, loads_without_end, save_events, status_100
from tests.contract.isolation import is_well


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A server with checkpoints; it stops in time, whatever was sent."""
    started = Box(tmp_path_factory.mktemp("messages"))
    yield started
    assert started.stop() == 0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (save_events, "expected a sealed file in memory, got another kind of file"),
        (status_100, "expected a status of POST /v1/sessions/{id}/commands, got 100"),
        (loads_without_end, "requests for stored files at a time, got more"),
    ],
)
def test_a_wrong_message_ends_its_session_alone(box: Box, function: Callable[[], object], words: str) -> None:
    session, answer = box.run_code(function, needs=NEEDS)
    assert (answer.status, answer.header["type"]) == (422, "UserCodeError"), answer.header
    assert "the session's own code wrote on the connection of its process (" in answer.error
    assert words in answer.error
    again = session.run({"do": "describe", "id": 1})
    assert (again.status, words in again.error) == (410, True)
    lines = [line for line in Path(box.live.log.name).read_text().splitlines() if session.id in line]
    (line,) = [line for line in lines if '"event": "request"' not in line]
    assert words in line
    assert box.live.call("GET", "/v1/checkpoints", owner="bob").status == 200
    is_well(box.live, "bob")


def test_a_list_of_sessions_has_what_is_known_of_a_process_that_answers_brackets(box: Box) -> None:
    session, answer = box.run_code(list_brackets, needs=NEEDS)
    assert answer.status == 200, answer.header
    (row,) = box.live.call("GET", "/v1/sessions", owner="py").header["sessions"]
    assert (row["id"], row["objects"], row["bytes"]) == (session.id, 0, 0)
    assert box.most - box.at_first < 64 << 20
    session.delete()
