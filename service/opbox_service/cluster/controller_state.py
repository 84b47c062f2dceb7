"""The controller's state as JSON, from which a controller that is started again goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import BadRequestError

from .directories import Directories
from .documents import ModelTerms
from .nodes import ClusterNode
from .quotas import QuotaShares
from .report_pace import ReportPace

if TYPE_CHECKING:
    from .controller import Controller

__all__ = ["SAVE_PAUSE", "dumped", "loaded"]

SAVE_PAUSE = 9
"""The state is written again after a pause of so many times what it cost: that takes a tenth of the time at most."""
FORMAT = 1
"""Format of the state; grows when an older opbox could not read it."""


def dumped(controller: Controller) -> bytes:
    """All state as JSON, in one order: the same state is the same bytes."""
    state = {
        "format": FORMAT,
        "pushes": controller.pushes,
        "lost_s": controller.lost_s,
        "pending_s": controller.pending_s,
        "ticked": controller.ticked,
        "behind": controller.behind,
        "pace": controller.pace.state(),
        "nodes": {name: node.as_json() for name, node in controller.nodes.items()},
        "shares": controller.shares.state(),
        "replicas": controller.replicas.state(),
        "loaded": controller.loaded.state(),
        "stated": {
            node: {name: asdict(terms) for name, terms in rows.items()} for node, rows in controller.stated.items()
        },
        "directories": controller.directories.state(),
        **controller.places.state(),
    }
    return json.dumps(state, sort_keys=True, separators=(",", ":")).encode()


def loaded(kind: type[Controller], state: bytes) -> Controller:
    """The controller that was dumped.

    Args:
        kind: its class.
        state: what `dumped` returned.

    Raises:
        BadRequestError: the bytes are no such state, or a newer opbox wrote them.
    """
    try:
        rows = json.loads(state)
        if rows["format"] > FORMAT:
            raise BadRequestError(
                f"state of the controller: expected format {FORMAT} or older, got {rows['format']}, which a newer "
                "opbox wrote: start that one, or begin with an empty state"
            )
        return _restored(kind, rows)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRequestError(
            f"state of the controller: expected what Controller.dump wrote, got another text ({error!r}): begin "
            "with an empty state"
        ) from None


def _restored(kind: type[Controller], rows: dict[str, Any]) -> Controller:
    controller = kind(pushes=rows["pushes"], lost_s=rows["lost_s"], pending_s=rows["pending_s"])
    controller.ticked, controller.behind = rows["ticked"], rows["behind"]
    controller.pace = ReportPace.restored(rows.get("pace", []))
    controller.begin_with(QuotaShares.restored(rows["shares"]))
    controller.directories = Directories.restored(rows["directories"])
    for name, row in rows["nodes"].items():
        controller.nodes[name] = node = ClusterNode.restored(row)
        controller.directories.node(name, node.info.url, node.state)
        for session in node.sessions:
            controller.directories.opened(session, name)
            if controller.directories.is_moved(session):
                node.moved[session] = None
    controller.directories.set_version(rows["directories"]["version"])
    controller.replicas.restore(rows["replicas"])
    controller.loaded.restore(rows.get("loaded", {}))
    controller.stated = {
        node: {name: ModelTerms(**terms) for name, terms in stated.items()} for node, stated in rows["stated"].items()
    }
    controller.places.restore(rows)
    return controller
