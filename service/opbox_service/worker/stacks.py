"""Finds where a process crashed or was ended: the session's own frames in the text that faulthandler wrote."""

from __future__ import annotations

import re

__all__ = ["own_frames"]

# What a bundle brings is compiled under a name in brackets. Where files lie tells nothing: a process that may not
# reach a package by its path opens it by a descriptor, and a user's folder may be called anything.
_FRAME = re.compile(r'  File "(?P<file><[^"]*>)", line (?P<line>\d+) in (?P<name>.*)')
_PYTHONS = ("<frozen ", "<__array_function__ ")
_CRASH = "Fatal Python error"
_SESSION = re.compile(r'/session/session\.py", line \d+ in drain\n')


def own_frames(trace: str) -> list[tuple[str, str, str]]:
    """The file, line and function of each of the session's own frames in what faulthandler wrote, the innermost last.

    Of the thread that crashed; of the one that runs the session's commands where none did or it ran none of its code.
    """
    from opbox.operator.bundle import shown_name  # all of the client comes with it

    stacks = re.split(r"\n(?=(?:Current thread|Thread) 0x)", trace)
    running = [stack for stack in stacks if _SESSION.search(stack)]
    # Of a process that was asked where it is, the current thread is the one that happened to take the signal.
    crashed = [stack for stack in stacks if stack.startswith("Current thread")] if _CRASH in stacks[0] else []
    for stack in crashed + running:
        own = [
            (shown_name(frame["file"]), frame["line"], frame["name"])
            for frame in _FRAME.finditer(stack)
            if not frame["file"].startswith(_PYTHONS)
        ]
        if own:
            return own[::-1]
    return []
