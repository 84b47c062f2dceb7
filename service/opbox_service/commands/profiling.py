"""Profiling: a session's operators and commands are timed, and the times go to its program."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ..executor import Profile
from .array_table import ArrayTable
from .command import Command, Exchange, TypedCommand
from .operators import operator_of

__all__ = ["COMMANDS", "run_profiled"]

MAX_TAKEN = 1 << 13
"""Maximum number of events in one answer."""


class RecordProfile(Command):
    """Time operators and commands from now on, as `record` says, and report earlier times."""

    changes_arrays: ClassVar[bool] = False

    do: Literal["profile"]
    record: list[Literal["symbolic", "imperative", "api"]] | None = Field(
        default=None,
        description="What is timed: nodes of graphs, operators called one by one, commands; null: as before.",
    )
    take: int = Field(
        default=0, ge=0, le=MAX_TAKEN, description="Maximum number of events to report, the oldest first."
    )

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        if self.record and table.profile is None:
            table.start_profile()
        profile = Profile() if table.profile is None else table.profile
        if self.record is not None:
            profile.kinds = frozenset(self.record)
        titles, events = profile.take(self.take)
        exchange.report(
            clock_ns=profile.now(), titles=titles, events=events, left=len(profile), dropped=profile.dropped
        )
        if not profile.kinds and not len(profile):
            table.end_profile()


def run_profiled(profile: Profile, command: TypedCommand, table: ArrayTable, exchange: Exchange) -> None:
    """Run a command; the profile notes how long it took, and of an operator that is called by itself how long that."""
    operator = operator_of(command) if "imperative" in profile.kinds else None
    commands = "api" in profile.kinds
    if operator is None and not commands:
        command.run(table, exchange)
        return
    began = profile.now()
    command.run(table, exchange)
    ended = profile.now()
    if operator is not None:
        profile.add("imperative", operator, operator, began, ended)
    if commands:
        profile.add("api", getattr(command, "do", ""), "", began, ended)


COMMANDS = (RecordProfile,)
