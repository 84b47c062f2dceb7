"""Where a process was when it crashed or was ended: the session's own frames in what faulthandler wrote."""

from __future__ import annotations

import os
import re

__all__ = ["own_frames"]

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)')
# By where the packages lie: a user's own folder may well be called opbox.
_OURS = re.compile(r"/opbox_(?:service|ops)/|(?:/client|/site-packages|/dist-packages|/proc/self/fd/\d+)/opbox/")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "/proc/self/fd/", "<frozen")


def own_frames(trace: str) -> list[tuple[str, str, str]]:
    """The frames of the session's own code in what faulthandler wrote, the innermost last."""
    from opbox.operator.bundle import shown_name  # all of the client comes with it

    for stack in re.split(r"\n(?=(?:Current thread|Thread) 0x)", trace):
        if "opbox_service/session/session.py" not in stack:
            continue
        own: list[tuple[str, str, str]] = []
        for found in _FRAME.finditer(stack):
            if _OURS.search(found["file"]):
                if own:
                    break
                continue
            if not any(part in found["file"] for part in _LIBRARIES):
                own.append((os.path.basename(shown_name(found["file"])), found["line"], found["name"]))
        if own:
            return own[::-1]
    return []
