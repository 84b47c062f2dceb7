"""What hostile input is sent at, each a function of bytes: frames, JSON, graphs, commands, checkpoints, operators.

A server's engine in this process answers, by the way that a worker's takes. An answer of any status but 500 is right;
an exception, a 500, and more than a second of processor time without a look at whether the call goes on are not.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol import wire
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.checkpoint_store import Buffer
from opbox_service.codec import limits_of, serve
from opbox_service.commands import COMMANDS
from opbox_service.engine import Engine
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from opbox_service.task import Task, running
from tests.cases import Case, all_cases
from tests.contract.live import FC, symbol, var
from tests.forged_checkpoints import FURTHER, forged, parts_of
from tests.fuzz.code_messages import code_messages
from tests.fuzz.draws import VALUES, Draws, arrays_of, hostile_array, hostile_value

__all__ = ["TARGETS", "Fault", "check"]

HANG_S = 1.0
LONGEST_S = 60.0
"""Of a call that looks: millions of samples of regions, which values ask for, take some seconds and can be stopped."""
FREE = frozenset({"run", "upload-python", "upload-cuda"})
X = {"x": np.ones((8, 16), np.float32), "w": np.ones((4, 16), np.float32), "b": np.zeros(4, np.float32)}


class Fault(Exception):
    """What no input may bring about."""


class LookingTask(Task):
    """A task that notes the longest time between two looks at whether it goes on.

    Attributes:
        longest: processor seconds.
    """

    def __init__(self) -> None:
        super().__init__(1.0)
        self.longest = 0.0
        self._looked = time.thread_time()

    def check(self) -> None:
        """See Task.check."""
        self.look()
        super().check()

    def look(self) -> None:
        """Note how long the last look is ago."""
        now = time.thread_time()
        self.longest = max(self.longest, now - self._looked)
        self._looked = now


class StoredFile:
    """A checkpoint store of one file, whatever its name and owner.

    Attributes:
        data: the file.
    """

    data = b""

    def save(self, owner: str, name: str, parts: Sequence[Buffer], generation: int | None = None) -> int:
        """See CheckpointStore."""
        self.data = b"".join(parts)
        return 0

    def load(self, owner: str, name: str) -> Buffer:
        """See CheckpointStore."""
        return self.data

    def take(self, owner: str, name: str) -> tuple[Buffer, int]:
        """See CheckpointStore."""
        return self.load(owner, name), 0


_STORED = StoredFile()


@functools.cache
def engine() -> Engine:
    """An engine with a server's limits, and little memory for each."""
    fresh = Engine(
        Settings(
            max_body_bytes=1 << 22,
            max_header_bytes=1 << 20,
            max_nodes=2000,
            max_session_bytes=64 << 20,
            max_answer_bytes=64 << 20,
            max_sessions=4,
            graph_seconds=1,
        ),
        checkpoints=_STORED,
    )
    heads = {"head_grad:fc_output": np.ones((8, 4), np.float32)}
    fresh.call("POST", "/v1/backward", {"graph": FC}, {**X, **heads})  # the first call of all loads modules
    by_operator()  # and these are many objects, which `begin_tending` sets aside with the modules'
    return fresh


def call(method: str, path: str, body: bytes, header_length: int | None, owner: str = "ann") -> RawResponse:
    """A call as a worker makes it.

    Raises:
        Fault: it came to a 500, or took longer than HANG_S between two looks, or than LONGEST_S in all.
    """
    asked = engine()
    route, parameters = ROUTES.match(method, path)
    request = RawRequest(route, parameters, path, owner, FREE, "id", body, header_length, header_length is not None)
    answers: list[RawResponse] = []

    def send(response: RawResponse) -> None:
        response.parts = [bytes(part) for part in response.parts]
        answers.append(response)

    task = LookingTask()
    begun = time.thread_time()
    with running(task):
        rest = serve(asked, request, limits_of(asked.settings), send, task)
        if rest is not None:
            rest()
    seconds = time.thread_time() - begun
    task.look()
    if not answers:
        raise Fault(f"{method} {path}: no answer")
    if answers[0].status == 500:
        raise Fault(f"{method} {path}: 500: {answers[0].problem}")
    if task.longest > HANG_S or seconds > LONGEST_S:
        raise Fault(f"{method} {path}: {seconds:.1f} s, and {task.longest:.1f} s without a look at whether it goes on")
    return answers[0]


def framed(
    method: str, path: str, header: Mapping[str, Any], tensors: Mapping[str, np.ndarray], owner: str = "ann"
) -> RawResponse:
    sendable = json.loads(json.dumps(header, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    head, buffers = wire.encode(sendable, tensors, "inputs")
    return call(method, path, b"".join([head, *buffers]), len(head), owner)


PATHS = [("POST", f"/v1/{name}") for name in ("forward", "backward", "infer_shape", "infer_type", "sessions")]
PATHS.append(("PUT", "/v1/graphs"))


def frames(data: bytes) -> None:
    """A right frame with some bytes changed, or any bytes."""
    draws = Draws(data)
    method, path = draws.one(PATHS)
    head, buffers = wire.encode({"graph": FC}, X, "inputs")
    body = bytearray(b"".join([head, *buffers]))
    length: int | None = len(head)
    if draws.sometimes(3):
        body = bytearray(draws.rest())
        length = draws.one((None, 0, len(body) // 2, len(body)))
    else:
        for _ in range(1 + draws.below(8)):
            at = draws.below(len(head)) if draws.sometimes(2) else draws.below(len(body))
            body[at] = draws.below(256)
        if draws.sometimes(4):
            del body[draws.below(len(body)) :]
        if draws.sometimes(4):
            length = draws.below(2 * len(head))
    call(method, path, bytes(body), length if length is None else min(length, len(body)))


def changed(document: Any, draws: Draws) -> Any:
    """JSON with one place changed."""
    if isinstance(document, dict | list) and document and not draws.sometimes(5):
        key = draws.one(list(document) if isinstance(document, dict) else list(range(len(document))))
        copy: Any = dict(document) if isinstance(document, dict) else list(document)
        copy[key] = changed(document[key], draws)
        if draws.sometimes(8):
            del copy[key]
        return copy
    kind = draws.below(5)
    if kind == 0:
        return {"a": document}
    if kind == 1:
        return [document]
    if kind == 2:
        return {}
    return draws.one(VALUES)


def texts(data: bytes) -> None:
    """JSON with some places changed, or any text."""
    draws = Draws(data)
    method, path = draws.one(PATHS)
    entries = [{"name": name, "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()} for name, x in X.items()]
    document: Any = {"graph": FC, "inputs": entries, "parameters": {"seed": 1, "is_train": True, "device": "cpu"}}
    if path.endswith("sessions"):
        document = {"device": "cpu", "ttl_s": 60, "seed": 1, "code": False}
    if path.endswith(("shape", "type")):
        document = {"graph": FC, "shapes": {"x": [8, 16]}}
    for _ in range(1 + draws.below(4)):
        document = changed(document, draws)
    text = json.dumps(document, default=str).encode("utf-8", "replace")
    call(method, path, draws.rest() if draws.sometimes(6) else text, None)


ROWS = ("relu", "FullyConnected", "elemwise_add", "Reshape", "Concat", "BatchNorm", "SliceChannel", "RNN", "Pooling")


def graphs(data: bytes) -> None:
    """A graph of some operators with any wiring and parameters: inferred, and run."""
    draws = Draws(data)
    cases = [case for name in ROWS for case in by_operator().get(name, ())]
    nodes: list[Any] = [var("x", __shape__=str(draws.one(((2, 3), (0, 3), (-1, 2), (1 << 40, 1 << 40))))), var("w")]
    for i in range(1 + draws.below(12)):
        case = draws.one(cases)
        attrs = {key: str(value) for key, value in case.attrs.items()}
        if attrs and draws.sometimes(3):
            key = draws.one(list(attrs))
            attrs[key] = str(hostile_value(draws, case.attrs[key]))
        inputs = [draws.below(len(nodes) + (1 if draws.sometimes(9) else 0)) for _ in case.inputs]
        nodes.append((case.op, f"n{draws.below(4) if draws.sometimes(5) else i}", attrs, inputs))
    graph: Any = symbol(*nodes, heads=[draws.below(len(nodes))] if draws.sometimes(3) else None)
    if draws.sometimes(3):
        graph = changed(graph, draws)
    header = {"graph": graph, "shapes": {"x": draws.one(([2, 3], [0, 3], [-1], None))}, "partial": draws.sometimes(2)}
    call("POST", "/v1/infer_shape", json.dumps(header, default=str).encode("utf-8", "replace"), None)
    tensors = {"x": np.ones((2, 3), np.float32), "w": np.ones((2, 3), np.float32)}
    framed(
        "POST",
        draws.one(("/v1/forward", "/v1/backward")),
        {"graph": graph},
        tensors,
    )


def in_session(commands: list[Any], tensors: Mapping[str, np.ndarray]) -> list[RawResponse]:
    """Each command as a batch of a session, which is deleted at the end."""
    opened = framed(
        "POST", "/v1/sessions", {"code": None}, {}, "bob"
    )  # ann's may be too many by frames of other targets
    path = f"/v1/sessions/{json.loads(opened.body)['id']}"
    try:
        return [framed("POST", f"{path}/commands", {"commands": batch}, tensors, "bob") for batch in commands]
    finally:
        framed("DELETE", path, {}, {}, "bob")


def commands(data: bytes) -> None:
    """Batches of right commands with places changed."""
    draws = Draws(data)
    puts = [{"do": "put", "id": i + 1, "tensor": name} for i, name in enumerate(X)]
    right: list[dict[str, Any]] = [
        {"do": "zeros", "ids": [4, 5, 6], "shape": [8, 16], "dtype": "float32"},
        {"do": "invoke", "op": "relu", "attrs": {}, "inputs": [1], "outputs": [9], "is_train": True},
        {"do": "bind", "id": 7, "graph": FC, "args": {"x": 1, "w": 2, "b": 3}, "grads": {"x": 4}, "outputs": [8]},
        {"do": "forward", "executor": 7, "is_train": True},
        {"do": "backward", "executor": 7, "head_grads": [8]},
        {"do": "update", "op": "sgd_update", "attrs": {"lr": 0.1}, "calls": [{"inputs": [1, 4]}]},
        {"do": "update", "op": "sgd_update", "inputs": [[1], [4]], "other_attrs": [{"calls": [0], "attrs": {"lr": 1}}]},
        {"do": "copy", "from": 1, "to": 4},
        {"do": "view", "id": 12, "of": 1, "begin": 1, "end": 3},
        {"do": "view", "id": 13, "of": 12, "shape": [-1]},
        {"do": "write", "id": 4, "tensor": "x"},
        {"do": "fetch", "id": 9, "as": "y"},
        {"do": "describe", "id": 1},
        {"do": "describe_executor", "id": 7},
        {"do": "seed", "seed": 3},
        {"do": "free", "ids": [6]},
        {"do": "infer_shape", "graph": FC, "shapes": {"x": [8, 16]}},
        {"do": "define", "op_type": "a", "sha256": "0" * 64, "bundle": {"pieces": [], "exports": [], "modules": []}},
        {"do": draws.one(list(COMMANDS)), "id": 1},
    ]
    batches: list[Any] = [puts]
    for _ in range(1 + draws.below(6)):
        batch: Any = [draws.one(right) if draws.sometimes(3) else right[i % len(right)] for i in range(draws.below(20))]
        batches.append(json.loads(json.dumps(changed(batch, draws), default=str)))
    in_session(batches, X)


@functools.cache
def by_operator() -> Mapping[str, list[Case]]:
    """The rows of the operator table by operator."""
    rows: dict[str, list[Case]] = {}
    for case in all_cases():
        rows.setdefault(case.op, []).append(case)
    return rows


SAVED: list[dict[str, Any]] = [
    *({"do": "put", "id": i + 1, "tensor": name} for i, name in enumerate(X)),
    {"do": "zeros", "ids": [4], "shape": [8, 16], "dtype": "float32"},
    {"do": "bind", "id": 10, "graph": FC, "args": {"x": 1, "w": 2, "b": 3}, "grads": {"x": 4}, "outputs": [8]},
    {"do": "forward", "executor": 10, "is_train": True},
    {"do": "checkpoint", "name": "right", "arrays": {"x": 1, "w": 2, "b": 3}, "executors": [10], "position": {"a": 1}},
]


@functools.cache
def right_checkpoint() -> bytes:
    """The file of a checkpoint."""
    in_session([SAVED], X)
    return _STORED.data


def checkpoints(data: bytes) -> None:
    """A checkpoint's file with places of its header changed, or some bytes: restored, and worked with."""
    draws = Draws(data)
    right = bytearray(right_checkpoint())
    if draws.sometimes(4):
        for _ in range(1 + draws.below(8)):
            right[draws.below(len(right))] = draws.below(256)
        if draws.sometimes(3):
            del right[draws.below(len(right)) :]
        _STORED.data = bytes(right)
    else:
        header, payload = parts_of(bytes(right))
        for _ in range(1 + draws.below(3)):
            header = changed(header, draws)
        _STORED.data = forged(json.dumps(header, default=str).encode("utf-8", "replace"), payload)
    in_session([[{"do": "restore", "name": "forged"}], *([command] for command in FURTHER)], X)


def operators(data: bytes) -> None:
    """A row of the operator table, with parameters and inputs changed: imperative, inferred, forward, backward."""
    draws = Draws(data)
    case = draws.one(draws.one(list(by_operator().values())))
    arrays = arrays_of(case, draws)
    attrs = dict(case.attrs)
    for _ in range(1 + draws.below(3)):
        if attrs and draws.sometimes(2):
            key = draws.one(list(attrs))
            attrs[key] = hostile_value(draws, attrs[key])
        elif arrays:
            name = draws.one(list(arrays))
            arrays[name] = hostile_array(draws, arrays[name])
    texts = {key: str(value) for key, value in attrs.items()}
    puts = [{"do": "put", "id": i + 1, "tensor": name} for i, name in enumerate(arrays)]
    ids = list(range(1, len(arrays) + 1))
    is_train = draws.sometimes(2)
    invoke = {"do": "invoke", "op": case.op, "inputs": ids, "is_train": is_train}
    values = {key: value for key, value in attrs.items() if isinstance(value, int | float | str | bool | list | tuple)}
    outputs = list(range(50, 50 + (1 + draws.below(3))))
    in_session(
        [
            puts,
            [{**invoke, "attrs": texts, "outputs": outputs[:1]}, {"do": "fetch", "id": 50, "as": "y"}],
            [{**invoke, "attrs": values, "outputs": outputs}],
            [{**invoke, "attrs": texts, "outputs": [1], "into": True}],
        ],
        arrays,
    )
    graph = symbol(*map(var, arrays), (case.op, "y", texts, list(range(len(arrays)))))
    shapes = {name: list(array.shape) for name, array in arrays.items() if not draws.sometimes(4)}
    framed("POST", "/v1/infer_shape", {"graph": graph, "shapes": shapes, "partial": True}, {})
    types = {name: str(array.dtype) for name, array in arrays.items() if not draws.sometimes(4)}
    framed("POST", "/v1/infer_type", {"graph": graph, "types": types, "partial": True}, {})
    forward = framed("POST", "/v1/forward", {"graph": graph, "parameters": {"is_train": is_train}}, arrays)
    if forward.status == 200:
        head = forward.header_length
        described = json.loads(forward.body[:head])["outputs"]
        heads = {f"head_grad:{out['name']}": np.ones(out["shape"], np.float32) for out in described}
        framed("POST", "/v1/backward", {"graph": graph}, {**arrays, **heads})


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "frames": frames,
    "json": texts,
    "graphs": graphs,
    "commands": commands,
    "checkpoints": checkpoints,
    "operators": operators,
    "code_messages": code_messages,
}


def check(target: str, data: bytes) -> None:
    """Send one input.

    Raises:
        Fault: a 500, an exception or a hang.
    """
    try:
        TARGETS[target](data)
    except Fault:
        raise
    except Exception as error:
        raise Fault(f"{target}: {type(error).__name__}: {error}") from error
