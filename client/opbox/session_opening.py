"""Opens a session on the engine: one with a process of its own, where the program has operators of its own."""

from __future__ import annotations

import os
from typing import Any

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError
from opbox_protocol.transport import Transport

from .operator.code_detection import will_bring_code

__all__ = ["open_session"]


def open_session(transport: Transport, device: str) -> dict[str, Any]:
    """A new session on the engine: one with a process of its own, where the program has code and the token allows it.

    Where the program does not show it, the session gets such a process when its first code comes; with OPBOX_CODE=0 it
    takes no code, and costs no process.
    """
    if not transport.in_process and os.environ.get("OPBOX_CODE") == "0":
        return transport.call("POST", routes.SESSIONS, {"device": device, "code": False}).header
    if not transport.in_process and will_bring_code():
        try:
            return transport.call("POST", routes.SESSIONS, {"device": device, "code": True}).header
        except MXNetError as error:
            if error.status != 403:
                raise
    return transport.call("POST", routes.SESSIONS, {"device": device}).header
