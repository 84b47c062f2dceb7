"""No owner sees what was in memory before: it is full of a pattern in these servers, and no answer shows that."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_protocol import wire
from tests.contract.isolation import settings
from tests.contract.live import Live, Session, symbol, var
from tests.contract.test_session_moves import bring_code
from tests.models.folders import perceptron, save
from tests.poison import ENVIRONMENT, FRESH, shows_poison

SIZE = 40_000
X = np.linspace(1, 2, SIZE, dtype=np.float32)
TAKE = symbol(var("x"), var("i"), ("take", "taken", {"mode": "raise"}, [0, 1]), ("_copy", "y", {}, [2]), heads=[2, 3])
SLOW = symbol(var("x"), *[("_test_slow", f"step{i}", {"seconds": "0.1"}, [i]) for i in range(600)])
DROPOUT = symbol(var("x"), ("Dropout", "drop", {"p": "0.5"}, [0]))
DOUBLE = symbol(var("x"), ("_mul_scalar", "y", {"scalar": "2"}, [0]))


@pytest.fixture(scope="module", params=["none", "process"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server in whose processes fresh and freed memory is full of a pattern."""
    folder = tmp_path_factory.mktemp("poisoned")
    save(folder / "models" / "plain", *perceptron())
    places = {"OPBOX_STATE_DIR": str(folder / "state"), "OPBOX_MODELS": str(folder / "models")}
    live = Live(request.param, folder, OPBOX_TOKENS=settings()["OPBOX_TOKENS"], **places, **ENVIRONMENT)
    yield live
    assert live.stop() == 0


def bound(server: Live, graph: Mapping[str, Any], owner: str = "bob", **arrays: np.ndarray) -> Session:
    """A session of an owner's that has bound a graph, as 10, to arrays; its outputs are 20 and 21."""
    session = server.session(owner)
    ids = {name: number for number, name in enumerate(arrays, 1)}
    outputs = [20 + number for number in range(len(graph["heads"]))]
    answer = session.run(
        *({"do": "put", "id": id, "tensor": name} for name, id in ids.items()),
        {"do": "bind", "id": 10, "graph": graph, "args": ids, "outputs": outputs},
        **arrays,
    )
    assert answer.status == 200, answer.header
    return session


def fetched(session: Session, *ids: int) -> list[np.ndarray]:
    answer = session.run(*({"do": "fetch", "id": id, "as": str(id)} for id in ids))
    assert answer.status == 200, answer.header
    return [answer.tensors[str(id)] for id in ids]


def test_the_memory_of_such_a_process_has_the_pattern(server: Live) -> None:
    program = "import numpy, sys; sys.exit(set(numpy.empty(100_000, 'u1').tolist()) != {int(sys.argv[1])})"
    subprocess.run([sys.executable, "-c", program, str(FRESH)], check=True, env=ENVIRONMENT)
    for pid in [server.process.pid, *server.workers()]:
        (setting,) = ENVIRONMENT.items()
        assert "=".join(setting).encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_outputs_before_the_first_forward(server: Live) -> None:
    session = bound(server, DOUBLE, x=X)
    assert not fetched(session, 20)[0].any()
    assert session.delete().status == 200


def test_outputs_of_a_forward_that_failed(server: Live) -> None:
    session = bound(server, TAKE, x=X, i=np.full(SIZE, SIZE, np.float32))
    failed = session.run({"do": "forward", "executor": 10})
    assert failed.status == 422, failed.header
    for output in fetched(session, 20, 21):
        assert not shows_poison(output)
    assert session.delete().status == 200


def test_outputs_of_a_forward_that_was_cancelled(server: Live) -> None:
    session = bound(server, SLOW, x=X)
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(session.run({"do": "forward", "executor": 10}).status))
    waiting.start()
    while not answers:
        server.call("DELETE", f"{session.path}/commands", owner="bob")
    waiting.join()
    assert answers == [499]
    assert not shows_poison(fetched(session, 20)[0])
    assert session.delete().status == 200


def test_a_checkpoint_of_an_output_that_nothing_has_written(server: Live) -> None:
    session = bound(server, DOUBLE, x=X)
    saved = session.run({"do": "checkpoint", "name": "early", "arrays": {"y": 20}, "executors": []})
    assert saved.status == 200, saved.header
    files = list((server.folder / "state").rglob("early*"))
    assert any(path.stat().st_size > X.nbytes for path in files)
    for path in files:
        assert not shows_poison(path.read_bytes()), path
    assert session.delete().status == 200


CHAINED = {"do": "bind", "id": 11, "graph": DOUBLE, "args": {"x": 20}, "outputs": [25]}


def test_outputs_of_a_restored_executor(server: Live) -> None:
    """They have the values that were saved, or none until it runs; so has an executor that reads them."""
    session = bound(server, DOUBLE, x=X)
    further = [{**CHAINED, "id": 12, "args": {"x": 20}, "outputs": [26]}]
    forward = [{"do": "forward", "executor": id} for id in (10, 11, 12)]
    answer = session.run(CHAINED, *further, *forward)
    assert answer.status == 200, answer.header
    saved = {"x": 1, "doubled": 20, "fourfold": 26}
    answer = session.run({"do": "checkpoint", "name": "late", "arrays": saved, "executors": [10, 11, 12]})
    assert answer.status == 200, answer.header
    again = server.session("bob")
    restored = again.run({"do": "restore", "name": "late"})
    assert restored.status == 200, restored.header
    doubled, fourfold = fetched(again, 20, 26)
    np.testing.assert_array_equal(doubled, 2 * X)
    np.testing.assert_array_equal(fourfold, 4 * X)
    for command in (
        {"do": "fetch", "id": 25, "as": "y"},
        {"do": "view", "id": 31, "of": 25, "begin": 0, "end": 1},
        {"do": "copy", "from": 25, "to": 31},
        {"do": "invoke", "op": "_copy", "inputs": [25], "outputs": [31]},
        {"do": "checkpoint", "name": "later", "arrays": {"y": 25}},
        {"do": "backward", "executor": 10, "head_grads": [25]},
    ):
        refused = again.run(command)
        assert (refused.status, refused.error) == (
            409,
            "array 25: expected values, got an output of executor 11, which has not run since it was restored: call "
            "forward",
        )
    answer = again.run({"do": "forward", "executor": 11})
    assert answer.status == 200, answer.header
    np.testing.assert_array_equal(fetched(again, 25)[0], 4 * X)
    for one in (session, again):
        assert one.delete().status == 200


def test_a_restored_output_has_no_values_after_a_move_either(server: Live) -> None:
    session = bound(server, DOUBLE, "py", x=X)
    saved = {"do": "checkpoint", "name": "moved", "arrays": {"x": 1}, "executors": [10]}
    answer = session.run({"do": "forward", "executor": 10}, saved)
    assert answer.status == 200, answer.header
    again = server.session("py")
    assert again.run({"do": "restore", "name": "moved"}).status == 200
    brought = bring_code(again)
    assert brought.status == 200, brought.header
    refused = again.run({"do": "fetch", "id": 20, "as": "y"})
    assert (refused.status, refused.error[:32]) == (409, "array 20: expected values, got a")
    assert again.run({"do": "forward", "executor": 10}).status == 200
    np.testing.assert_array_equal(fetched(again, 20)[0], 2 * X)
    for one in (session, again):
        assert one.delete().status == 200


@pytest.mark.compiler
def test_arrays_that_a_kernel_is_given(server: Live) -> None:
    """A kernel reads an output that nothing has written, and writes one element of another array."""
    source = """
        extern "C" __global__ void part(const float *x, float *y) {
            y[threadIdx.x] = threadIdx.x ? x[threadIdx.x] : 1;
        }
    """
    session = bound(server, DOUBLE, "py", x=X)
    answer = session.run(
        {"do": "zeros", "ids": [30], "shape": [SIZE], "dtype": "float32"},
        {"do": "compile", "id": 31, "kernel": "part", "source": source, "signature": "const float *x, float *y"},
        {
            "do": "launch",
            "kernel": 31,
            "args": [{"array": 20}, {"array": 30}],
            "grid": [1, 1, 1],
            "block": [1000, 1, 1],
        },
    )
    assert answer.status == 200, answer.header
    read, written = fetched(session, 20, 30)
    assert not read.any()
    assert written.tolist() == [1] + [0] * (SIZE - 1)
    assert session.delete().status == 200


def test_an_operator_that_failed_gives_nothing(server: Live) -> None:
    session = server.session("bob")
    put = [{"do": "put", "id": id, "tensor": name} for id, name in ((1, "x"), (2, "i"))]
    take = {"do": "invoke", "op": "take", "attrs": {"mode": "raise"}, "inputs": [1, 2], "outputs": [3]}
    failed = session.run(*put, take, x=X, i=np.full(SIZE, SIZE, np.float32))
    assert failed.status == 422, failed.header
    assert session.run({"do": "fetch", "id": 3, "as": "y"}).status == 404
    assert session.delete().status == 200


def test_calls_of_a_model(server: Live) -> None:
    x = np.linspace(-1, 1, 4 * SIZE, dtype=np.float32).reshape(SIZE, 4)
    tensors = {"infer": {"data": x}, "backward": {"data": x, "softmax_label": np.zeros(SIZE, np.float32)}}
    for verb, names in (("infer", ["softmax_output", "fc1_output"]), ("infer", None), ("backward", None)):
        head, buffers = wire.encode(
            {} if names is None else {"outputs": [{"name": name} for name in names]}, tensors[verb], "inputs"
        )
        sent = {wire.HEADER_LENGTH: str(len(head))}
        for owner in ("ann", "bob"):
            answer = server.clients[owner].post(
                f"/v2/models/plain/{verb}", content=b"".join([head, *buffers]), headers=sent
            )
            assert answer.status_code == 200, answer.text
            assert len(answer.content) > 4 * SIZE
            assert not shows_poison(answer.content)


def test_an_output_that_its_operator_does_not_write(server: Live) -> None:
    """The mask of a Dropout that drops nothing, as a head of the graph, in the answer to `watch`, and of a model."""
    graph = {**DROPOUT, "heads": [[1, 0, 0], [1, 1, 0]]}
    session = bound(server, graph, x=X)
    names = {"drop_output": 30, "drop_mask": 31}
    answer = session.run({"do": "forward", "executor": 10})
    assert answer.status == 200, answer.header
    assert not any(map(shows_poison, fetched(session, 20, 21)))
    watched = session.run({"do": "forward", "executor": 10, "watch": names})
    assert watched.status == 200, watched.header
    assert not any(map(shows_poison, fetched(session, *names.values())))
    forward = server.call("POST", "/v1/forward", {"graph": graph}, {"x": X}, owner="bob")
    assert forward.status == 200, forward.header
    assert not any(map(shows_poison, forward.tensors.values()))
    assert session.delete().status == 200
