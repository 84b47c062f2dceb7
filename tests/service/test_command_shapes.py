"""What the client may write of a command is what the server's model of it reads."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from opbox_protocol import commands
from opbox_service.commands.parse import COMMANDS

SHAPES = {get_args(get_type_hints(shape)["do"])[0]: shape for shape in commands.COMMANDS}
# Filled in when the command joins a batch: the tensor's name; the graph, or its name where the session knows it.
FILLED_IN = {
    ("put", "tensor"),
    ("put_rows", "tensor"),
    ("write", "tensor"),
    ("infer_shape", "graph"),
    ("infer_type", "graph"),
}


def test_every_command_has_a_shape() -> None:
    assert set(SHAPES) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_shape_and_model_have_the_same_fields(name: str) -> None:
    model: Any = COMMANDS[name]
    shape = SHAPES[name]
    fields = {field.alias or key: field for key, field in model.model_fields.items()}
    assert set(shape.__required_keys__ | shape.__optional_keys__) == set(fields)
    required = {key for key, field in fields.items() if field.is_required() and (name, key) not in FILLED_IN}
    assert shape.__required_keys__ == required
