"""Opens a session on the engine: one with a process of its own, where the program has operators of its own.

A server is told the program's name and its machine's, for its page, unless OPBOX_REPORT is 0.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError
from opbox_protocol.reports import MAX_HOST, MAX_SCRIPT
from opbox_protocol.transport import Transport

from .operator.code_detection import will_bring_code

AFTER = "Opbox-After"
"""The HTTP header with the id of a lost session that the new one goes on from."""

__all__ = ["open_session", "reports_wanted"]


def open_session(transport: Transport, devices: Sequence[str], after: str = "") -> dict[str, Any]:
    """A new session on devices of the engine.

    Args:
        transport: to the engine.
        devices: of the session.
        after: id of a lost session that it goes on from, which a cluster's gateway is told.

    It has a process of its own, where the program has code and the token allows it. Where the program does not show it,
    the session gets such a process when its first code comes; with OPBOX_CODE=0 it takes no code, and costs no process.
    """
    wanted: dict[str, Any] = {"device": devices[0]} if len(devices) == 1 else {"devices": list(devices)}
    if not transport.in_process and reports_wanted():
        wanted |= {"script": _program()[:MAX_SCRIPT], "host": socket.gethostname()[:MAX_HOST]}
    if not transport.in_process and os.environ.get("OPBOX_CODE") == "0":
        return _opened(transport, {**wanted, "code": False}, after)
    if not transport.in_process and will_bring_code():
        try:
            return _opened(transport, {**wanted, "code": True}, after)
        except MXNetError as error:
            if error.status != 403:
                raise
    return _opened(transport, wanted, after)


def _opened(transport: Transport, wanted: dict[str, Any], after: str) -> dict[str, Any]:
    """The answer to a request for a session."""
    if not after or transport.in_process:
        return transport.call("POST", routes.SESSIONS, wanted).header
    from .http import HttpTransport
    from .http_messages import encode_call, read_reply

    assert isinstance(transport, HttpTransport)
    headers, chunks = encode_call(wanted, None)
    return transport.exchange("POST", routes.SESSIONS, {**headers, AFTER: after}, chunks, read_reply).header


def reports_wanted() -> bool:
    """Return whether a server is told the program's name and its metrics; ValueError unless OPBOX_REPORT is 0 or 1."""
    setting = os.environ.get("OPBOX_REPORT", "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"OPBOX_REPORT: expected 0 or 1, got {setting!r}")
    return setting != "0"


def _program() -> str:
    """Return the program's name: script, module, "notebook" or "python"."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if "ipykernel" in sys.modules:
        return "notebook"
    if spec is not None and spec.name:
        return f"python -m {spec.name.removesuffix('.__main__')}"
    return Path(getattr(main, "__file__", None) or "python").name
