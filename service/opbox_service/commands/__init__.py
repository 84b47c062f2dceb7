"""A session's commands: each subject's models and what they do, side by side, over a table of arrays.

Sessions and `mx.nd` inside a user's operator run the same commands. No order, no batches, no sessions here.
"""

from .array_table import ArrayTable
from .command import Command, Exchange, TypedCommand
from .parse import COMMANDS, AnyCommand, check_scopes, name_of, parse, parse_one

__all__ = [
    "COMMANDS",
    "AnyCommand",
    "ArrayTable",
    "Command",
    "Exchange",
    "TypedCommand",
    "check_scopes",
    "name_of",
    "parse",
    "parse_one",
]
