"""gRPC's connections: floods of frames, large headers, silence, idleness, and messages that are sent in parts."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from opbox_protocol.errors import LimitError
from opbox_service.api.connections import MAX_WAITING_BYTES, Connections
from opbox_service.grpc.call import GrpcCall
from opbox_service.grpc.connection import GrpcConnection
from opbox_service.grpc.field_table import FieldTable
from opbox_service.grpc.frame_meter import CREDITS, FrameMeter
from opbox_service.grpc.infer_requests import InferRequestReader
from opbox_service.grpc.messages import message_class
from opbox_service.settings import Settings
from tests.attack.http2 import Http2, framed
from tests.contract.live import TOKENS, Live
from tests.models.conftest import address_of, wait_until
from tests.models.folders import FEATURES, expected
from tests.models.grpc_client import Calls, Request, metadata, request, values

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
PING, RESET, HEADERS, CONTINUATION, SETTINGS, PRIORITY, WINDOW_UPDATE = 6, 3, 1, 9, 4, 2, 8
DIES, STALL_S = 2.0, 2.0


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that waits for nobody, without models."""
    live = Live(
        "none",
        tmp_path_factory.mktemp("hasty"),
        OPBOX_GRPC_PORT="0",
        OPBOX_REQUEST_HEAD_S=str(DIES),
        OPBOX_KEEP_ALIVE_S=str(DIES),
        OPBOX_STALL_S=str(STALL_S),
    )
    yield address_of(live)
    assert live.stop() == 0


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def send_raw(address: str, data: bytes) -> bytes:
    """What the server answers until it ends the connection."""
    host, _, port = address.rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        try:
            sock.sendall(data)
            while part := sock.recv(1 << 16):
                answer += part
        except ConnectionError:
            pass
    return answer


FLOODS = {
    "pings": frame(PING, bytes(8)) * 20_000,
    "settings": frame(SETTINGS) * 20_000,
    "priorities": frame(PRIORITY, bytes(4) + b"\0", 0, 3) * 20_000,
    "window updates": frame(WINDOW_UPDATE, b"\0\0\0\1") * 20_000,
    "empty continuations": frame(HEADERS, b"", 0, 1) + frame(CONTINUATION, b"", 0, 1) * 20_000,
    "headers without end": frame(HEADERS, b"", 0, 1) + frame(CONTINUATION, bytes(1 << 14), 0, 1) * 1000,
    "headers that repeat themselves": frame(HEADERS, b"\x40\x01a\x7f\xe1\x1e" + b"b" * 4000 + b"\xbe" * 12_000, 4, 1),
    "resets": b"".join(
        frame(HEADERS, b"\x83\x86\x84\x41\x01a", 4, 2 * i + 1) + frame(RESET, bytes(4), 0, 2 * i + 1)
        for i in range(10_000)
    ),
    "no preface": b"GET / HTTP/1.1\r\n\r\n",
    "a frame of 16 MiB": b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
}


@pytest.mark.parametrize("name", FLOODS)
def test_what_asks_for_nothing_ends_the_connection(call: Calls, grpc_address: str, name: str) -> None:
    answer = send_raw(grpc_address, FLOODS[name] if name == "no preface" else PREFACE + FLOODS[name])
    assert len(answer) < 1 << 18
    assert call("ServerLive", owner=None).live


def test_a_connection_ends_that_is_silent_or_idle(hasty: str) -> None:
    for data in (b"", PREFACE):
        assert send_raw(hasty, data)  # its settings, and at the end that the connection ends
    with Http2(hasty) as link:
        assert link.call("ServerLive") == 0
        while link.look():
            pass


def test_a_message_that_does_not_come_ends_its_call(hasty: str) -> None:
    with Http2(hasty) as link:
        stream = link.begin("ModelInfer", TOKENS["ann"])
        link.send(stream, framed(bytes(1000))[:500])
        assert link.wait(stream) == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


@pytest.mark.parametrize("end", [False, True])
def test_a_call_without_a_message(call: Calls, grpc_address: str, end: bool) -> None:
    with Http2(grpc_address) as link:
        stream = link.begin("ServerReady")
        link.send(stream, b"", end=end)
        assert link.wait(stream) == 0
        stream = link.begin("ModelReady", TOKENS["ann"])
        link.send(stream, b"\0\0\0\0\5abc", end=True)
        assert link.wait(stream) == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert link.call("ServerLive") == 0


def test_compressed_messages_that_are_none(call: Calls, grpc_address: str) -> None:
    with Http2(grpc_address) as link:
        for coded, data in ((True, b"\1\0\0\0\4none"), (False, b"\1\0\0\0\4none"), (True, b"\7\0\0\0\0")):
            stream = link.begin("ModelInfer", TOKENS["ann"], compressed=coded)
            link.send(stream, data, end=True)
            assert link.wait(stream) == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_a_stream_of_messages_of_many_sizes(call: Calls) -> None:
    """Around the window of a stream, which opens as messages are read."""
    sizes = [1, 4000, 4093, 4094, 4095, 4096, 4097, 2000, 3000, 100_000, 5, 4090, 70_000, 1]
    inputs = [np.full((rows, FEATURES), rows / 7, np.float32) for rows in sizes]
    answers = call.stream([request(x) for x in inputs])
    for x, answer in zip(inputs, answers, strict=True):
        assert answer.error_message == ""
        np.testing.assert_allclose(values(answer.infer_response)[:2], expected(x[:2]), rtol=1e-6)


def test_a_client_that_reads_slowly_gets_its_answer(grpc_address: str, call: Calls) -> None:
    x = np.zeros((200_000, FEATURES), np.float32)
    with Http2(grpc_address, window=1 << 14) as link:
        assert link.call("ModelInfer", request(x).SerializeToString(), TOKENS["ann"]) == 0
        assert link.received > 2_400_000


def test_messages_whose_token_is_not_checked_are_counted_together() -> None:
    """As heads of requests are: more than 8 KiB on a connection are too many where all have 16 MiB."""

    async def ends() -> tuple[bool, bool]:
        connections = Connections(Settings())
        others = [connections.admit(None, lambda: None) for _ in range(2)]
        listener = await asyncio.get_running_loop().create_server(
            lambda: GrpcConnection(wait_for_ever, connections, set()), "127.0.0.1", 0
        )
        address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"

        def send() -> bool:
            with Http2(address) as link:
                link.send(link.begin("ModelInfer"), framed(bytes(1 << 14)))
                link.socket.settimeout(1)
                while link.look():
                    pass
                return link.ended

        taken = await asyncio.to_thread(send)
        connections.wait(others[0], MAX_WAITING_BYTES)
        refused = await asyncio.to_thread(send)
        listener.close()
        return taken, refused

    assert asyncio.run(ends()) == (False, True)


async def wait_for_ever(call: GrpcCall) -> None:
    await asyncio.Event().wait()


def test_calls_at_a_time_on_one_connection(call: Calls) -> None:
    infer = call.callable("ModelInfer")
    futures = [infer.future(request(X + i), metadata=metadata("ann"), timeout=120) for i in range(200)]
    statuses = {future.exception() for future in futures}
    assert statuses == {None}


def test_a_frame_is_counted_wherever_it_is_cut() -> None:
    data = PREFACE + frame(0, bytes(5000), 0, 1) + frame(PING, bytes(8)) * (CREDITS // 2)
    for size in (1, 8, 9, 10, 4096):
        meter = FrameMeter(1 << 16, lambda: 0.0)
        for at in range(0, len(data), size):
            meter.take(memoryview(data)[at : at + size])
        meter.take(memoryview(frame(PING, bytes(8)) * (CREDITS // 2 - 1)))  # the settings cost one
        with pytest.raises(LimitError, match="frames: expected at most"):
            meter.take(memoryview(frame(PING, bytes(8))))


@pytest.mark.parametrize(
    "data",
    [b"\x1a\x00" * 101, b"\xf8\x01\x01" * 101, b"\x22\x02\x0a\x00" * 51, b"\x2a\x68\x1a\x66" + b"\1" * 102,
     b"\x2a\xce\x01" + b"\x18\x01" * 103],
    ids=["ids", "unknown", "nested", "packed", "unpacked"],
)  # fmt: skip
def test_fields_are_counted_before_they_are_read(data: bytes) -> None:
    table = FieldTable(message_class("ModelInferRequest").DESCRIPTOR)
    with pytest.raises(LimitError, match="the message: expected at most 100 fields, got more: send fewer"):
        table.count(data, 100)


def test_values_in_contents_are_counted() -> None:
    message = Request(model_name="m")
    message.inputs.add(name="x", datatype="INT64", shape=[2000]).contents.int64_contents.extend(range(2000))
    data = message.SerializeToString()
    assert len(InferRequestReader(Settings(max_json_values=2000)).read(data).tensors[0]) == 16_000
    with pytest.raises(LimitError, match="contents: expected at most 1999 values, got more: send them in raw_input_"):
        InferRequestReader(Settings(max_json_values=1999)).read(data)


@pytest.mark.parametrize("packed", [True, False])
def test_contents_in_several_parts(packed: bool) -> None:
    """Protobuf joins them; a list may be packed or not."""
    one = b"\x12\x0b" + b"\xff" * 9 + b"\x01" + b"\x05" if packed else b"\x10" + b"\xff" * 9 + b"\x01" + b"\x10\x05"
    part = b"\x2a" + bytes([len(one)]) + one
    tensor = b"\x0a\x01x\x12\x05INT32\x1a\x01\x04" + part * 2
    body = InferRequestReader(Settings()).read(b"\x0a\x01m\x2a" + bytes([len(tensor)]) + tensor)
    assert np.frombuffer(body.tensors[0], np.int32).tolist() == [-1, 5, -1, 5]


def test_a_model_s_files_in_a_message(call: Calls, tmp_path: Path) -> None:
    """What a message brings as bytes is no field of its own."""
    message = message_class("RepositoryModelLoadRequest")(model_name="by_message")
    message.parameters["file:1/net.params"].bytes_param = bytes(1 << 20)
    assert call.refusal("RepositoryModelLoad", message, "boss")[0] in ("NOT_FOUND", "INVALID_ARGUMENT")
    wait_until(lambda: bool(call("ServerLive", owner=None).live))
