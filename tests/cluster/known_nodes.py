"""The controller of a gateway process: it knows the nodes of the variable TEST_NODES, "a=URL b=URL"."""

from __future__ import annotations

import os

from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import NodeInfo
from opbox_service.cluster.gateway.controllers import Controllers, LocalControllers


def controllers() -> Controllers:
    """What the gateway asks."""
    controller = Controller()
    for entry in os.environ["TEST_NODES"].split():
        name, _, url = entry.partition("=")
        controller.join(NodeInfo(name, url, {"cpu": 1 << 30}), 0.0)
    return LocalControllers(controller, lambda: 0.0)
