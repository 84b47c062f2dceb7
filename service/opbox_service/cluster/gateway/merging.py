"""Merging: lists of the whole cluster, from what each node answers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from opbox_protocol import routes
from opbox_protocol.errors import NotReadyError

from .answers import WholeAnswer, ask
from .heads import RequestHead

if TYPE_CHECKING:
    from .server import ClusterGateway

__all__ = ["LISTS", "merged_list"]

LISTS = {routes.SESSIONS: "sessions", routes.ADMIN_SESSIONS: "sessions", routes.DEVICES: "devices"}
"""The routes whose answers are merged, with the name of the list in them."""
NODE_S = 5.0
"""Maximum seconds to wait for one node's rows."""
_OF_THE_CLIENT = (b"accept", b"accept-encoding", b"content-length", b"expect", b"if-none-match")
"""Headers that are not passed on: nodes answer in JSON as it is."""


async def merged_list(gateway: ClusterGateway, head: RequestHead, name: str, client: bytes) -> WholeAnswer:
    """Return the rows of all nodes, each with its `node`; `unreached` has the names of nodes that did not answer.

    Args:
        gateway: which is asked.
        head: of the request.
        name: of the list in the answers.
        client: address of the client.

    Returns:
        The merged answer; or a node's own, where it refuses the request.

    Raises:
        NotReadyError: no node answers.
    """
    headers = [pair for pair in head.headers if pair[0] not in _OF_THE_CLIENT]
    sent = dataclasses.replace(head, headers=[*headers, (b"accept", b"application/json")])
    nodes = {node: row.url for node, row in sorted(gateway.directory.nodes.items()) if row.state != "lost"}
    answers = await asyncio.gather(*(_rows(gateway, url, sent, client) for url in nodes.values()))
    rows: list[dict[str, Any]] = []
    unreached: list[str] = []
    for node, answer in zip(nodes, answers, strict=True):
        if answer is None:
            unreached.append(node)
        elif answer.status != 200:
            return answer
        else:
            rows += [{**row, "node": node} for row in json.loads(answer.body)[name]]
    if len(unreached) == len(nodes):
        error = NotReadyError(f"cluster: expected a node that answers, got none of {len(nodes)}: try again")
        error.retry_after = 1.0
        raise error
    text = json.dumps({name: rows, "unreached": unreached}, ensure_ascii=False).encode()
    return WholeAnswer(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))], text)


async def _rows(gateway: ClusterGateway, url: str, head: RequestHead, client: bytes) -> WholeAnswer | None:
    """A node's answer; None where it does not come."""
    try:
        return await asyncio.wait_for(ask(gateway.pool(url), head, b"", client), NODE_S)
    except (OSError, TimeoutError):
        return None
