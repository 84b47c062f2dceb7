"""Misspelt variables: a program says so once, as it would compute in its own process and not on the server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = "import opbox as mx; mx.nd.ones(2).asnumpy(); mx.connection.use(None); print(mx.nd.ones(2).asnumpy().sum())"


def warned(**variables: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "2.0\n", done.stderr
    return [line for line in done.stderr.splitlines() if "OPBOX_" in line]


def test_a_misspelt_variable_is_told_once_at_the_program_s_line() -> None:
    (line,) = warned(OPBOX_ULR="http://127.0.0.1:1")
    assert line.startswith("<string>:1: ")
    assert line.endswith("OPBOX_ULR: expected a variable of opbox, got an unknown name: did you mean OPBOX_URL?")


@pytest.mark.parametrize("name", ["OPBOX_WORKERS", "OPBOX_TIMEOUT", "OPBOX_COLOUR", "MY_OPBOX_ULR"])
def test_variables_of_a_server_and_of_others_are_left_alone(name: str) -> None:
    assert warned(**{name: "7"}) == []
