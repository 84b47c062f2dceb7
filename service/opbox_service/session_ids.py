"""Ids of sessions: random, and in a cluster with the name of their node before them, so that anybody can route by it.

5f0c… (32 hex digits) on a single server, a-5f0c… on node a.
"""

from __future__ import annotations

import re
import secrets

__all__ = ["NODE_PATTERN", "new_id", "node_of"]

NODE_PATTERN = r"[a-z0-9]{1,16}"
"""What the name of a node looks like (the setting OPBOX_NODE)."""
_ID = re.compile(rf"({NODE_PATTERN})-[0-9a-f]{{32}}", re.ASCII)


def new_id(node: str = "") -> str:
    """A new session's id, which nobody can guess.

    Args:
        node: the name of the node that has the session; "" on a single server.
    """
    return f"{node}-{secrets.token_hex(16)}" if node else secrets.token_hex(16)


def node_of(id: str) -> str | None:
    """Return the name of the node that a session's id carries; None where it carries none, or is no id.

    Example:
        >>> node_of("a-" + 32 * "0")
        'a'
        >>> node_of(32 * "0") is None
        True
    """
    match = _ID.fullmatch(id)
    return match[1] if match else None
