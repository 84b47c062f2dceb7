"""Writes the header of a batch of commands as JSON, with repeated operators and attributes written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .strict_json import strict_json

__all__ = ["batch_json"]

_INTEGERS = {int}


def batch_json(header: Mapping[str, Any]) -> str:
    """A request's header as JSON. An `invoke` among its commands whose operator and attributes have been there is an
    `invoke_again`: half as long, and written without a look at the attributes.

    Attributes recur when they are the same object, as those of one form of call are.
    """
    commands = header.get("commands")
    if not commands:
        return strict_json(header)
    rest = strict_json({name: value for name, value in header.items() if name != "commands"})
    return f'{rest[:-1]}{"," if len(rest) > 2 else ""}"commands":[{",".join(_pieces(commands))}]}}'


def _pieces(commands: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the JSON of each command, to be joined by commas."""
    numbers: dict[tuple[str, int], int] = {}
    pieces: list[str] = []
    written = 0  # commands of which JSON has been made
    for number, command in enumerate(commands):
        if command["do"] != "invoke" or len(command) != 6 or "into" not in command or "attrs" not in command:
            continue
        key = (command["op"], id(command["attrs"]))
        of = numbers.setdefault(key, number)
        if of == number:
            continue
        inputs, outputs = command["inputs"], command["outputs"]
        if command["into"] or not (_are_integers(inputs) and _are_integers(outputs)):
            continue
        if written < number:
            pieces.append(strict_json(commands[written:number])[1:-1])
        # A list of integers is written by Python as JSON has it.
        pieces.append(f'{{"do":"invoke_again","of":{of},"inputs":{inputs},"outputs":{outputs}}}')
        written = number + 1
    if written < len(commands):
        pieces.append(strict_json(commands[written:])[1:-1])
    return pieces


def _are_integers(ids: Any) -> bool:
    return type(ids) is list and _INTEGERS.issuperset(map(type, ids))
