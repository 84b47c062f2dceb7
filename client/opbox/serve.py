"""Models of a server, called with NumPy's arrays: `mx.serve`.

    client = mx.serve.Client("http://gpu-box:8000", token="…")
    digits = client.model("digits")
    digits(data=images)["softmax_output"]

    async with mx.serve.AsyncClient("http://gpu-box:8000", token="…") as client:
        outputs = await client.model("digits")(data=images)

They use nothing but the Open Inference Protocol, so they call the models of any server that speaks it. Only `publish`
and `remove` need an opbox server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from opbox_protocol import routes
from opbox_protocol.datatypes import dtype_of
from opbox_protocol.errors import MXNetError
from opbox_protocol.transport import Reply

from . import token_store
from .aio import AsyncServer
from .foreign import host_values, is_array
from .http import HttpTransport
from .http_messages import ReadReply
from .model_messages import encode_json, encode_request, read_object, read_outputs
from .publishing import publish_call, remove_call
from .server_scope import AsyncClosing, Closing, server_named

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncClient", "AsyncModel", "Client", "Model"]

Array = np.ndarray[Any, Any]


class Client(Closing):
    """A server whose models are called. Safe to call from many threads.

    Args:
        url: "http://host:port"; by default OPBOX_URL.
        token: its token; by default OPBOX_TOKEN, or the one that a server on this machine stored.
        http: an httpx.Client of yours, which you close.
        timeout: seconds to wait for an answer; by default OPBOX_TIMEOUT or 600.

    Raises:
        MXNetError: no address, or none that is one.

    Example:
        >>> client = mx.serve.Client("http://gpu-box:8000", token="…")
        >>> client.model("digits")(data=np.zeros((1, 784), np.float32))["softmax_output"].shape
        (1, 10)
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        http: httpx.Client | None = None,
        timeout: float | None = None,
    ) -> None:
        url, token = server_named("serve", url, token)
        stored = None if token else (lambda: token_store.read(url))
        self._transport = HttpTransport(url, token or token_store.read(url), timeout, stored, http=http)

    def __repr__(self) -> str:
        return f"<Client {self._transport.address}>"

    def close(self) -> None:
        """Close the connections; those of a client of your own stay open."""
        self._transport.close()

    def model(self, name: str, version: int | str = "") -> Model:
        """Return a model by its name. Nothing is asked of the server yet.

        Args:
            name: of the model.
            version: of it; by default the newest.
        """
        return Model(self._transport, _ModelCalls(name, str(version)))

    def models(self) -> list[dict[str, Any]]:
        """Return the models of the server: name, version, state, and the reason why one is not ready.

        Raises:
            MXNetError: the server refused, or could not be reached.
        """
        reply = self._transport.exchange("POST", routes.REPOSITORY_INDEX, *encode_json({}), read_object)
        return _rows(reply)

    def publish(
        self,
        name: str,
        files: Sequence[str | os.PathLike[str]] | Mapping[str, bytes],
        *,
        to: str | Sequence[str] = (),
        version: int | None = None,
        config: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Publish a model onto an opbox server, or a further version of one of yours. It is served when this returns.

        The version before serves until then, and goes on if this one cannot be loaded.

        Args:
            name: letters, digits, dashes and underlines. Other owners call it "OWNER.NAME".
            files: a NAME-symbol.json and its .params, or an .onnx file; if wanted a .txt file with a class's name on
                each line. Paths, or the bytes by the file's name. A NAME-ops.json beside a symbol's path goes with it.
            to: the owners who may call it beside you, or "everyone".
            version: its number, larger than those before; by default the next.
            config: the path of a model.toml.

        Returns:
            `name`, `full_name`, `version`, `bytes` and `callers`.

        Raises:
            BadRequestError, ShapeError, …: why it cannot be served.
            StorageError: your quota is used up, or the server's disk.
            FileError: a file cannot be read.

        Example:
            >>> client.publish("lenet", ["lenet-symbol.json", "lenet-0012.params"], to="everyone")["version"]
            '1'
        """
        return self._transport.call(*publish_call(name, files, to, version, config)).header

    def remove(self, name: str, version: int | None = None) -> None:
        """Remove a model that you published, or one version of it: the version before serves again.

        Raises:
            NotFoundError: you have published no such model or version.
        """
        self._transport.call(*remove_call(name, version))


Exchange = tuple[str, str, Mapping[str, str], Sequence[Any], ReadReply]
"""The arguments of a transport's `exchange`."""


@dataclass(frozen=True)
class _ModelCalls:
    """Writes the calls for a model.

    Attributes:
        name, version: of the model; "" for its newest version.
        datatypes: of its inputs, once they are known.
    """

    name: str
    version: str
    datatypes: dict[str, str] = field(default_factory=dict)

    def get(self, what: str = "") -> Exchange:
        """The call that asks for the model's metadata, or for its "/config", "/outputs", "/stats" or "/ready"."""
        return "GET", self._path + what, {}, (), read_object

    def infer(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        classes: Mapping[str, int] | None,
        parameters: Mapping[str, Any] | None,
    ) -> Exchange:
        """The call that runs the model."""
        arrays = {name: self._array(name, value) for name, value in inputs.items()}
        headers, chunks = encode_request(arrays, outputs, classes or {}, parameters or {})
        return "POST", f"{self._path}/infer", headers, chunks, read_outputs

    def backward(
        self,
        inputs: Mapping[str, Any],
        head_grads: Mapping[str, Any] | None,
        wanted: Sequence[str] | None,
        parameters: Mapping[str, Any],
    ) -> Exchange:
        """The call that computes gradients."""
        arrays = {name: self._array(name, value) for name, value in inputs.items()}
        arrays |= {routes.HEAD_GRAD + name: self._array("", value) for name, value in (head_grads or {}).items()}
        names = None if wanted is None else [routes.GRAD + name for name in wanted]
        headers, chunks = encode_request(arrays, names, {}, parameters)
        return "POST", f"{self._path}/backward", headers, chunks, read_outputs

    def needs_types(self, inputs: Mapping[str, Any]) -> bool:
        """Whether there are values without a type of their own, and the model's types are not known yet."""
        return not self.datatypes and not all(is_array(value) for value in inputs.values())

    def learn(self, metadata: Mapping[str, Any]) -> None:
        """Note the types of the model's inputs."""
        self.datatypes.update((row["name"], row["datatype"]) for row in metadata["inputs"])

    @property
    def _path(self) -> str:
        name, version = quote(self.name, safe=""), quote(self.version, safe="")
        return (routes.MODEL_VERSION if version else routes.MODEL).format(model=name, version=version)

    def _array(self, name: str, value: Any) -> Array:
        if is_array(value):
            return np.asarray(host_values(value))
        datatype = self.datatypes.get(name)
        return np.asarray(value, None if datatype in (None, "BYTES") else dtype_of(datatype))


class Model:
    """A model of a server; see `Client.model`."""

    def __init__(self, transport: HttpTransport, calls: _ModelCalls) -> None:
        self._transport = transport
        self._calls = calls

    def __repr__(self) -> str:
        return f"<Model {self._calls.name} at {self._transport.address}>"

    def __call__(self, **inputs: Any) -> dict[str, Array]:
        """Return the outputs by name.

        Args:
            inputs: arrays by input. Lists and numbers become arrays of the model's type.

        Raises:
            MXNetError: the server refused.
            TransportError: it could not be reached.

        Example:
            >>> client.model("digits")(data=images)["softmax_output"]
        """
        return self.infer(inputs)

    def infer(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        classes: Mapping[str, int] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Return outputs by name.

        Args:
            inputs: arrays by input.
            outputs: the names of those that are wanted; by default those that the model's file names, or all. An opbox
                server has the values inside a model too, such as "fc1_output": see `outputs`.
            classes: for these outputs so many of their best classes, as bytes "value:index" or "value:index:label".
            parameters: of the request, such as `{"priority": 1}`.

        Raises:
            MXNetError: the server refused.
            TransportError: it could not be reached.

        Example:
            >>> client.model("digits").infer({"data": image}, classes={"softmax_output": 1})["softmax_output"]
            array([[b'0.998047:7']], dtype=object)
        """
        if self._calls.needs_types(inputs):
            self._calls.learn(self.metadata())
        return self._transport.exchange(*self._calls.infer(inputs, outputs, classes, parameters)).tensors

    def backward(
        self,
        inputs: Mapping[str, Any],
        head_grads: Mapping[str, Any] | None = None,
        wanted: Sequence[str] | None = None,
        *,
        is_train: bool = False,
        seed: int = 0,
    ) -> dict[str, Array]:
        """Return gradients by the name of an input or parameter. The model of the server never changes.

        An extension of opbox's: other servers have no gradients.

        Args:
            inputs: arrays by input, and by label where the model ends in a loss.
            head_grads: gradients of outputs, or of values inside the model, by name. Without any, the model's outputs
                are losses. With one of an inner value, only values that have one are differentiated.
            wanted: the inputs and parameters whose gradients are wanted; by default all inputs.
            is_train: whether operators run as in training: dropout drops, batch normalisation reads the batch.
            seed: of random operators.

        Raises:
            MXNetError: the server refused.
            TransportError: it could not be reached.

        Example:
            >>> digits.backward({"data": image}, {"fc2_output": one_hot})["data"].shape
            (1, 784)
        """
        if self._calls.needs_types(inputs):
            self._calls.learn(self.metadata())
        call = self._calls.backward(inputs, head_grads, wanted, {"is_train": is_train, "seed": seed})
        return _gradients(self._transport.exchange(*call))

    def outputs(self) -> list[str]:
        """Return the names that `infer` may ask for: the model's outputs, and the values inside it.

        Raises:
            MXNetError: the server refused, or is not opbox.
        """
        return _names(self._transport.exchange(*self._calls.get("/outputs")))

    def metadata(self) -> dict[str, Any]:
        """Return the names, types and shapes of the model's inputs and outputs; -1 is a length that varies."""
        return self._transport.exchange(*self._calls.get()).header

    def config(self) -> dict[str, Any]:
        """Return the model's configuration, in the form that Triton's clients know."""
        return self._transport.exchange(*self._calls.get("/config")).header

    def statistics(self) -> list[dict[str, Any]]:
        """Return counts and times of the model's requests, by version."""
        reply = self._transport.exchange(*self._calls.get("/stats"))
        return _statistics(reply)

    def ready(self) -> bool:
        """Return whether the model takes requests.

        Raises:
            MXNetError: the server could not be reached, or refuses this token.
        """
        try:
            self._transport.exchange(*self._calls.get("/ready"))
        except MXNetError as error:
            return _not_ready(error)
        return True


class AsyncClient(AsyncClosing):
    """A server whose models are called from asyncio; see `Client`.

    Args:
        url, token, timeout: as of `Client`.
        http: an httpx.AsyncClient of yours, which you close.

    Example:
        >>> async with mx.serve.AsyncClient("http://gpu-box:8000", token="…") as client:
        ...     outputs = await client.model("digits")(data=images)
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        http: httpx.AsyncClient | None = None,
        timeout: float | None = None,
    ) -> None:
        url, token = server_named("serve", url, token)
        self._server = AsyncServer(url, token, http, timeout)

    def __repr__(self) -> str:
        return f"<AsyncClient {self._server.address}>"

    async def close(self) -> None:
        """Close the connections; those of a client of your own stay open."""
        await self._server.close()

    def model(self, name: str, version: int | str = "") -> AsyncModel:
        """Return a model by its name; see `Client.model`."""
        return AsyncModel(self._server, _ModelCalls(name, str(version)))

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of the server; see `Client.models`."""
        return _rows(await self._server.exchange("POST", routes.REPOSITORY_INDEX, *encode_json({}), read_object))

    async def publish(
        self,
        name: str,
        files: Sequence[str | os.PathLike[str]] | Mapping[str, bytes],
        *,
        to: str | Sequence[str] = (),
        version: int | None = None,
        config: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Publish a model onto an opbox server; see `Client.publish`."""
        return (await self._server.call(*publish_call(name, files, to, version, config))).header

    async def remove(self, name: str, version: int | None = None) -> None:
        """Remove a model that you published, or one version of it; see `Client.remove`."""
        await self._server.call(*remove_call(name, version))


class AsyncModel:
    """A model of a server, called from asyncio; its methods are those of `Model`."""

    def __init__(self, server: AsyncServer, calls: _ModelCalls) -> None:
        self._server = server
        self._calls = calls

    def __repr__(self) -> str:
        return f"<AsyncModel {self._calls.name} at {self._server.address}>"

    async def __call__(self, **inputs: Any) -> dict[str, Array]:
        """Return the outputs by name; see `Model`."""
        return await self.infer(inputs)

    async def infer(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        classes: Mapping[str, int] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Return outputs by name; see `Model.infer`."""
        if self._calls.needs_types(inputs):
            self._calls.learn(await self.metadata())
        return (await self._server.exchange(*self._calls.infer(inputs, outputs, classes, parameters))).tensors

    async def backward(
        self,
        inputs: Mapping[str, Any],
        head_grads: Mapping[str, Any] | None = None,
        wanted: Sequence[str] | None = None,
        *,
        is_train: bool = False,
        seed: int = 0,
    ) -> dict[str, Array]:
        """Return gradients by the name of an input or parameter; see `Model.backward`."""
        if self._calls.needs_types(inputs):
            self._calls.learn(await self.metadata())
        call = self._calls.backward(inputs, head_grads, wanted, {"is_train": is_train, "seed": seed})
        return _gradients(await self._server.exchange(*call))

    async def outputs(self) -> list[str]:
        """Return the names that `infer` may ask for; see `Model.outputs`."""
        return _names(await self._server.exchange(*self._calls.get("/outputs")))

    async def metadata(self) -> dict[str, Any]:
        """Return the model's inputs and outputs; see `Model.metadata`."""
        return (await self._server.exchange(*self._calls.get())).header

    async def config(self) -> dict[str, Any]:
        """Return the model's configuration; see `Model.config`."""
        return (await self._server.exchange(*self._calls.get("/config"))).header

    async def statistics(self) -> list[dict[str, Any]]:
        """Return counts and times of the model's requests; see `Model.statistics`."""
        return _statistics(await self._server.exchange(*self._calls.get("/stats")))

    async def ready(self) -> bool:
        """Return whether the model takes requests; see `Model.ready`."""
        try:
            await self._server.exchange(*self._calls.get("/ready"))
        except MXNetError as error:
            return _not_ready(error)
        return True


def _rows(reply: Reply) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = reply.header["rows"]
    return rows


def _gradients(reply: Reply) -> dict[str, Array]:
    return {name.removeprefix(routes.GRAD): array for name, array in reply.tensors.items()}


def _names(reply: Reply) -> list[str]:
    return [row["name"] for row in reply.header["outputs"]]


def _statistics(reply: Reply) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = reply.header["model_stats"]
    return rows


def _not_ready(error: MXNetError) -> bool:
    """False for the answer of a model that takes no requests; any other error is raised."""
    if error.status in (400, 404, 503):
        return False
    raise error
