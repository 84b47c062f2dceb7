"""The table of commands, and how a batch of them is read.

A new command is a class in one of the subjects' files, listed in that file's COMMANDS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, TypeAlias, Union, get_args

from pydantic import Field, TypeAdapter, ValidationError

from opbox_protocol.errors import BadRequestError, ForbiddenError, LimitError
from opbox_protocol.excerpt import excerpt

from ..owner_terms import Scope
from ..validation import explain, first_error
from . import (
    arrays,
    checkpoints,
    compression,
    custom_operators,
    datasets,
    devices,
    executors,
    groups,
    kernels,
    operators,
    profiling,
    reports,
)
from .command import Command, TypedCommand
from .executors import recurring_run
from .operators import InvokeAgain, forget_replaced, recurring

__all__ = ["COMMANDS", "AnyCommand", "check_scopes", "name_of", "parse", "parse_one"]

COMMANDS: Mapping[str, type[Command]] = {
    get_args(command.model_fields["do"].annotation)[0]: command
    for subject in (
        arrays,
        operators,
        compression,
        executors,
        kernels,
        custom_operators,
        checkpoints,
        reports,
        profiling,
        devices,
        datasets,
        groups,
    )
    for command in subject.COMMANDS
}
"""Every command by its name, the field `do`."""

# The types are those of a table, which no type checker reads.
AnyCommand: TypeAlias = Annotated[Union[tuple(COMMANDS.values())], Field(discriminator="do")]  # type: ignore[valid-type]  # noqa: UP007
PIECE = 512
"""Number of commands to validate before other threads get their turn."""
_BATCH: TypeAdapter[list[Command]] = TypeAdapter(list[AnyCommand])
_ONE: TypeAdapter[Command] = TypeAdapter(AnyCommand)


def parse(commands: Any, limit: int) -> Sequence[TypedCommand]:
    """The typed commands of a batch.

    Raises:
        BadRequestError: the command's number, what it expects and what it got.
        LimitError: more than `limit`.
    """
    if not isinstance(commands, list):
        kind = "nothing" if commands is None else type(commands).__name__
        raise BadRequestError(f"commands: expected a list of commands, got {kind}")
    if len(commands) > limit:
        raise LimitError(f"commands: expected at most {limit} in a batch, got {len(commands)}: send several batches")
    runs: list[Any] = [recurring_run(command) for command in commands]
    if None not in runs:
        return runs
    forget_replaced()
    typed: list[Any] = []
    unknown: list[Any] = []
    for run, command in zip(runs, commands, strict=True):
        known = run or recurring(command, typed)
        if known is None:
            unknown.append(command)
        typed.append(known)
    if not unknown:
        return typed
    try:
        rest = chain.from_iterable(
            _BATCH.validate_python(unknown[start : start + PIECE]) for start in range(0, len(unknown), PIECE)
        )
        typed = [next(rest) if known is None else known for known in typed]
    except ValidationError:
        raise _refusal(commands) from None
    for number, command in enumerate(typed):
        if type(command) is InvokeAgain:
            command.find_first(number, typed)
    return typed


def parse_one(command: Mapping[str, Any]) -> TypedCommand:
    """One typed command; BadRequestError as `parse`."""
    forget_replaced()
    known = recurring(command)
    if known is not None:
        return known
    try:
        typed = _ONE.validate_python(command)
    except ValidationError:
        return parse([command], 1)[0]  # raises, with its number
    if type(typed) is InvokeAgain:
        typed.find_first(0, [typed])  # raises
    return typed


def check_scopes(commands: Sequence[TypedCommand], scopes: frozenset[Scope]) -> None:
    """ForbiddenError when a command needs more than the token that brought it has."""
    for number, command in enumerate(commands):
        if command.scope != "run" and command.scope not in scopes:
            listed = ", ".join(sorted(scopes)) or "none"
            raise ForbiddenError(
                f"command {number} ({name_of(command)}): expected a token with the scope "
                f"{command.scope!r}, got one with {listed}: use another token; nothing ran",
                detail={"command": number},
            )


def name_of(command: TypedCommand) -> str:
    """A command's name, the field `do`."""
    named: Any = command  # each subclass has the field, with its own name for a type
    return str(named.do)


def _refusal(commands: list[Any]) -> BadRequestError:
    """The error on the first command that is wrong."""
    for start in range(0, len(commands), PIECE):
        piece = commands[start : start + PIECE]
        try:
            _BATCH.validate_python(piece)
        except ValidationError as error:
            item = first_error(error, piece, _BATCH.validate_python)
            break
    number, *place = item["loc"]
    number = start + number if isinstance(number, int) else number
    command = commands[number] if isinstance(number, int) else None
    do = command.get("do") if isinstance(command, dict) else None
    detail = {"command": number}
    if not isinstance(command, dict):
        return BadRequestError(f"command {number}: expected an object, got {excerpt(command)}", detail=detail)
    if not isinstance(do, str) or do not in COMMANDS:
        listed = ", ".join(COMMANDS)
        return BadRequestError(f"command {number}: do: expected one of {listed}, got {excerpt(do)}", detail=detail)
    sentence = explain(item, COMMANDS[do], place[1:])
    return BadRequestError(f"command {number} ({do}): {sentence}", detail=detail)
