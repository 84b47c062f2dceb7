"""A client of GRPCInferenceService for the tests: the messages, and a channel that calls by a method's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from opbox_service.grpc.messages import METHODS, SERVICE, message_class
from tests.contract.live import TOKENS

Request = message_class("ModelInferRequest")


class Calls:
    """Calls the methods of a server."""

    def __init__(self, channel: grpc.Channel, address: str) -> None:
        self.channel = channel
        self.address = address

    def callable(self, name: str) -> Any:
        """What calls a method."""
        method = METHODS[name]
        kind = "stream_stream" if method.client_streaming else "unary_unary"
        return getattr(self.channel, kind)(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=message_class(method.output_type).FromString,
        )

    def __call__(self, name: str, request: Any = None, owner: str | None = "ann", **options: Any) -> Any:
        """The answer; `request` is the message, its bytes, or the values of its fields."""
        if request is None or isinstance(request, dict):
            request = message_class(METHODS[name].input_type)(**request or {})
        return self.callable(name)(request, metadata=metadata(owner), timeout=120, **options)

    def stream(self, requests: Sequence[Any], owner: str | None = "ann", **headers: str) -> list[Any]:
        """All answers of a stream."""
        sent = (*metadata(owner), *headers.items())
        return list(self.callable("ModelStreamInfer")(iter(requests), metadata=sent, timeout=120))

    def refusal(self, name: str, request: Any = None, owner: str | None = "ann") -> tuple[str, str]:
        """The status and sentence that a call is refused with."""
        try:
            self(name, request, owner)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{name}: expected an error, got an answer")


@contextmanager
def calls(address: str, credentials: grpc.ChannelCredentials | None = None) -> Iterator[Calls]:
    """A connection to a server."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    channel = (
        grpc.insecure_channel(address, options)
        if credentials is None
        else grpc.secure_channel(address, credentials, options)
    )
    with channel:
        yield Calls(channel, address)


def metadata(owner: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata with an owner's token."""
    return () if owner is None else (("authorization", f"Bearer {TOKENS[owner]}"),)


def request(x: np.ndarray, model: str = "plain", **fields: Any) -> Any:
    """A request with one input as bytes."""
    message = Request(model_name=model, **fields)
    message.inputs.add(name="data", datatype="FP32", shape=x.shape)
    message.raw_input_contents.append(x.astype(np.float32).tobytes())
    return message


def values(answer: Any, output: int = 0) -> np.ndarray:
    """An output of an answer."""
    described = answer.outputs[output]
    assert described.datatype == "FP32"
    return np.frombuffer(answer.raw_output_contents[output], np.float32).reshape(tuple(described.shape))
