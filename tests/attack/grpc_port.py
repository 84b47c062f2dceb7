"""Attacks on the port of gRPC: messages that grow when they are read, halves of messages, answers that nobody reads."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Sequence

import numpy as np

import opbox as mx
from opbox_service.grpc.messages import message_class
from tests.attack.attack import MIB, Attack, Outcome
from tests.attack.box import Box
from tests.attack.http2 import Http2, framed
from tests.contract.live import TOKENS
from tests.models.uploads import INPUT, packed

__all__ = ["ATTACKS"]

OWNER = "bob"
OK, EXHAUSTED = 0, 8
MESSAGE_BYTES = 30 * MIB
LIMIT_BYTES = 64 * MIB
"""The largest message that a server takes by default."""
UNFINISHED_BYTES = 62 * MIB
HALF_OPEN = 2100
"""More than all connections that a server takes by default."""
WIDTH = 1024
ANSWER_BYTES = 64 * MIB
UNREAD = 20
BUFFERS = 256 * MIB
STALL_S = 4.0
WINDOW = 1 << 16
"""As much of a message as a client may send by HTTP/2 before the server asks for more."""


def health(box: Box) -> str:
    """What the server says of itself by REST and gRPC; empty where both answer."""
    statuses = [box.live.clients["ann"].get(f"/v2/health/{kind}", timeout=10).status_code for kind in ("live", "ready")]
    with Http2(box.grpc_address, timeout_s=10) as link:
        answers = [link.call(name) for name in ("ServerLive", "ServerReady")]
    return "" if (statuses, answers) == ([200, 200], [OK, OK]) else f"health: {statuses} by REST, {answers} by gRPC"


def fields(box: Box) -> Outcome:
    """Send messages of small fields, compressed: read as they are, each becomes many times as large."""
    contents = b"\x0a" + varint(MESSAGE_BYTES // 8) + b"\x01" * (MESSAGE_BYTES // 8)
    tensor = b"\x12\x04BOOL\x2a" + varint(len(contents)) + contents
    unknown = b"\xf8\x01\x01" * (MESSAGE_BYTES // 3)
    entry = b"\x0a\x02\x0a\x00"
    messages: list[tuple[str, bytes]] = [
        ("ModelInfer", b"\x2a\x00" * (MESSAGE_BYTES // 2)),
        ("ModelInfer", b"\x22\x00" * (MESSAGE_BYTES // 2)),
        ("ModelInfer", b"\x3a\x00" * (MESSAGE_BYTES // 2)),
        ("ModelInfer", b"\x2a" + varint(len(tensor)) + tensor),
        ("ModelInfer", unknown),
        ("ModelInfer", bytes(2 * LIMIT_BYTES)),
        ("RepositoryModelLoad", b"\x1a\x00" * (MESSAGE_BYTES // 2)),
        ("RepositoryModelUnload", b"\x1a\x00" * (MESSAGE_BYTES // 2)),
        ("TraceSetting", entry * (MESSAGE_BYTES // 4)),
        ("LogSettings", entry * (MESSAGE_BYTES // 4)),
        ("ModelReady", unknown),
    ]
    statuses = []
    for method, message in messages:
        with Http2(box.grpc_address) as link:
            statuses.append(link.call(method, message, TOKENS[OWNER], compressed=True))
    return Outcome(all(status == EXHAUSTED for status in statuses), f"statuses {statuses}")


def unfinished(box: Box) -> Outcome:
    """Send most of a large message to a method that needs no token, on many connections."""
    half = framed(bytes(UNFINISHED_BYTES + 1))[:UNFINISHED_BYTES]
    with contextlib.ExitStack() as links:
        sent = []
        for number in range(24):
            link = links.enter_context(Http2(box.grpc_address, timeout_s=1.0))
            sent.append(link.send(link.begin("ServerLive" if number % 2 else "ServerReady"), half))
        return Outcome(max(sent) <= WINDOW, f"{max(sent):,} bytes taken of each")


def unread(box: Box) -> Outcome:
    """Ask for large answers and read none of them."""
    network = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=WIDTH, no_bias=True, name="wide")
    weights = packed({"arg:wide_weight": np.ones((WIDTH, 4), np.float32)})
    with mx.serve.Client(box.live.url, TOKENS[OWNER]) as client:
        client.publish(
            "wide",
            {"net-symbol.json": network.tojson().encode(), "net.params": weights, "model.toml": INPUT.encode()},
        )
    rows = ANSWER_BYTES // (4 * WIDTH)
    request = message_class("ModelInferRequest")(model_name="wide")
    request.inputs.add(name="data", datatype="FP32", shape=[rows, 4])
    request.raw_input_contents.append(bytes(16 * rows))
    message = framed(request.SerializeToString())
    with Http2(box.grpc_address, window=0) as link:
        streams = [link.begin("ModelInfer", TOKENS[OWNER]) for _ in range(UNREAD)]
        for stream in streams:
            link.send(stream, message, end=True)
        refused, until = 0, time.monotonic() + 30
        while len(link.statuses) < UNREAD and time.monotonic() < until:
            link.drain(0.2)
            if not refused:
                with Http2(box.grpc_address) as other:
                    refused += other.call("ModelInfer", message, TOKENS[OWNER]) == EXHAUSTED
    says = f"{refused} further refused, {len(link.statuses)} of {UNREAD} ended"
    return Outcome(len(link.statuses) == UNREAD and refused == 1, says)


def probes(box: Box) -> Outcome:
    """Take all calls that need no token, by gRPC and by HTTP."""
    with contextlib.ExitStack() as stack:
        for number in range(2):
            link = stack.enter_context(Http2(box.grpc_address, timeout_s=5.0))
            for _ in range(70):
                link.send(link.begin("ServerReady" if number else "ServerLive"), framed(bytes(64))[:6])
        for _ in range(200):
            sock = stack.enter_context(box.connect())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4)
        problems = [problem for _ in range(5) if (problem := health(box))]
    return Outcome(not problems, problems[0] if problems else "health answered")


def half_open(box: Box) -> Outcome:
    """Take all connections and all calls from one address, without a token."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(HALF_OPEN + 2000, most), most))
    with Http2(box.grpc_address) as before, contextlib.ExitStack() as stack:
        with_token = [before.call("ServerMetadata", token=TOKENS[OWNER])]
        links: list[Http2] = []
        with contextlib.suppress(OSError):
            for _ in range(HALF_OPEN):
                link = stack.enter_context(Http2(box.grpc_address))
                link.begin("ServerLive")
                links.append(link)
        opened = len(links)
        says = health(box)
        with_token.append(before.call("ServerMetadata", token=TOKENS[OWNER]))
        with Http2(box.grpc_address) as link:
            with_token.append(link.call("ServerMetadata", token=TOKENS[OWNER]))
    safe = not says and with_token == [OK] * 3
    return Outcome(safe, says or f"{opened} opened, others' calls ended with {with_token}")


def varint(value: int) -> bytes:
    """An integer as protobuf writes it."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


PORT = {"OPBOX_GRPC_PORT": "0"}
ALL_COUNT = {**PORT, "OPBOX_TRUSTED_PROXIES": '["10.255.255.1"]'}
"""Loopback is no proxy, so that its connections count as those of one address."""
SHORT = {**PORT, "OPBOX_STALL_S": str(STALL_S), "OPBOX_MAX_OWNER_BUFFER_BYTES": str(BUFFERS)}
ATTACKS: Sequence[Attack] = [
    Attack("grpc-fields", "messages of 30 MiB of small fields, compressed", fields, PORT, grows=2 * LIMIT_BYTES),
    Attack("grpc-unfinished", "halves of messages without a token", unfinished, PORT, grows=32 * MIB),
    Attack("grpc-unread", "20 answers of 64 MiB that nobody reads", unread, SHORT, grows=2 * BUFFERS, keeps=96 * MIB),
    Attack("grpc-probes", "calls and files without a token, until health has no place", probes, PORT, grows=64 * MIB),
    # The interpreter keeps the memory of 1,000 connections for the next: twelve such attacks keep as much as three.
    Attack("grpc-half-open", "2,100 connections of one address", half_open, ALL_COUNT, grows=128 * MIB, keeps=64 * MIB),
]
