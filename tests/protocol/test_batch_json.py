"""A batch's JSON says the same as its commands, and recurring operators and attributes once."""

from __future__ import annotations

import json
from typing import Any

from opbox_protocol.batch_json import batch_json

ATTRS = {"num_hidden": "4"}


def invoke(number: int, attrs: dict[str, str] = ATTRS, op: str = "FullyConnected", **fields: Any) -> dict[str, Any]:
    """A command as the client records it."""
    command = {"do": "invoke", "op": op, "attrs": attrs, "inputs": [number, 7], "outputs": [number + 1], "into": False}
    return command | fields


def repeated(of: int, number: int) -> dict[str, Any]:
    return {"do": "invoke_again", "of": of, "inputs": [number, 7], "outputs": [number + 1]}


def written(commands: list[Any]) -> list[Any]:
    text = json.loads(batch_json({"seq": 3, "commands": commands, "wait": True}))
    assert {name: value for name, value in text.items() if name != "commands"} == {"seq": 3, "wait": True}
    return text["commands"]


def test_what_recurs_is_written_once() -> None:
    free = {"do": "free", "ids": [1, 2]}
    commands = [free, invoke(1), invoke(2), free, free, invoke(3), invoke(4, op="Other"), invoke(5, op="Other")]
    assert written(commands) == [
        free,
        invoke(1),
        repeated(1, 2),
        free,
        free,
        repeated(1, 3),
        commands[6],
        repeated(6, 5),
    ]


def test_equal_attributes_of_two_calls_may_be_two_objects() -> None:
    commands = [invoke(1), invoke(2, attrs=dict(ATTRS))]
    assert written(commands) == commands


def test_what_is_written_otherwise_stands_as_it_is() -> None:
    commands = [
        invoke(1),
        invoke(2, into=True),
        invoke(3, outputs=[None]),
        invoke(4, inputs=[True, 7]),
        invoke(5, inputs=(5, 7)),
        invoke(6, is_train=True),
        {"do": "invoke", "op": "FullyConnected", "inputs": [1], "outputs": [2]},
    ]
    assert written(commands) == json.loads(json.dumps(commands))


def test_other_headers_are_what_they_were() -> None:
    for header in ({}, {"graph": "g"}, {"seq": 1, "commands": []}):
        assert json.loads(batch_json(header)) == header
    assert json.loads(batch_json({"commands": [invoke(1), invoke(2)]})) == {"commands": [invoke(1), repeated(0, 2)]}
