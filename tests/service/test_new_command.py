"""A new session command takes one class in its file's COMMANDS: then it is read, checked, run and documented."""

from __future__ import annotations

import json

from tests.added_source import run_with

COMMAND = '''

class Negate(Command):
    """Change the sign of every element of an array."""

    do: Literal["negate"]
    id: Id

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        array = table.writable(self.id)
        table.backend.xp.negative(array, out=array)


COMMANDS = (*COMMANDS, Negate)
'''

PROGRAM = """
import json
import numpy as np
from pydantic import TypeAdapter
from opbox_protocol.errors import MXNetError
from opbox_service.commands import AnyCommand
from opbox_service.embedded import EmbeddedTransport

engine = EmbeddedTransport()
commands = f"/v1/sessions/{engine.call('POST', '/v1/sessions', {'device': 'cpu'}).header['id']}/commands"

def send(seq, *commands_, **tensors):
    return engine.call("POST", commands, {"seq": seq, "commands": [*commands_], "wait": True}, tensors)

put, fetch = {"do": "put", "id": 1, "tensor": "x"}, {"do": "fetch", "id": 1, "as": "y"}
values = send(1, put, {"do": "negate", "id": 1}, fetch, x=np.arange(3, dtype="f")).tensors["y"].tolist()
errors = []
for seq, wrong in enumerate([{"id": "1"}, {"id": 9}, {"id": 1, "to": 2}, {}], 2):
    try:
        send(seq, {"do": "negate", **wrong})
    except MXNetError as error:
        errors.append(str(error))
documented = TypeAdapter(AnyCommand).json_schema()["$defs"]  # as OpenAPI has it
print(json.dumps([values, errors, documented["Negate"]["description"]]))
"""


def test_a_class_in_a_subjects_file_is_a_command() -> None:
    values, errors, description = json.loads(run_with({"opbox_service.commands.arrays": COMMAND}, {}, PROGRAM))
    assert values == [0, -1, -2]
    assert errors == [
        "command 0 (negate): id: expected an integer from 0 to 2**63 - 1, got '1'",
        "array 9: expected one of this session, got nothing",
        "command 0 (negate): unknown field 'to': expected id",
        "command 0 (negate): id: expected an integer from 0 to 2**63 - 1, got nothing",
    ]
    assert description == "Change the sign of every element of an array."
