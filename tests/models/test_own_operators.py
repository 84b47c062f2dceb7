"""Published models with operators of their owner's: each has a process of its own, started again when it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import BadRequestError, ForbiddenError, MXNetError, UserCodeError
from tests.contract.live import TOKENS, Live
from tests.models.conftest import remove_all, wait_until
from tests.models.uploads import packed


class Twice(mx.operator.CustomOp):
    """2 x + 1; ends its process where x begins with 99, and fails where it begins with 55."""

    def forward(self, is_train, req, in_data, out_data, aux):
        values = in_data[0].asnumpy()
        if values.flat[0] == 99:
            os._exit(3)
        if values.flat[0] == 55:
            raise ValueError("no 55, please")
        self.assign(out_data[0], req[0], in_data[0] * 2 + in_data[1])


@mx.operator.register("publish_twice")
class TwiceProp(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["data", "weight"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (1,)], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return Twice()


class Part(mx.operator.CustomOp):
    """The first row of x alone."""

    def forward(self, is_train, req, in_data, out_data, aux):
        out_data[0][0:1] = in_data[0][0:1]


@mx.operator.register("publish_part")
class PartProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Part()


def network() -> mx.sym.Symbol:
    return mx.sym.Custom(mx.sym.Variable("data"), name="twice", op_type="publish_twice")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    network().save(str(tmp_path / "net-symbol.json"))
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(contents) == {"net-symbol.json", "net-ops.json"}
    return {**contents, "net.params": packed({"arg:twice_weight": np.ones(1, np.float32)})}


@pytest.fixture
def py(shared: Live) -> Iterator[mx.serve.Client]:
    with mx.serve.Client(shared.url, TOKENS["py"]) as client:
        yield client
        remove_all(shared, "py")


@pytest.fixture
def bob(shared: Live) -> Iterator[mx.serve.Client]:
    with mx.serve.Client(shared.url, TOKENS["bob"]) as client:
        yield client


@pytest.fixture
def ann(shared: Live) -> Iterator[mx.serve.Client]:
    with mx.serve.Client(shared.url, TOKENS["ann"]) as client:
        yield client


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def row_of(server: Live, name: str) -> dict[str, object]:
    rows = server.clients["bob"].get("/v1/models").json()["models"]
    return next(row for row in rows if row["name"] == name)


def test_it_runs_in_a_process_of_its_own(
    shared: Live, py: mx.serve.Client, bob: mx.serve.Client, files: dict[str, bytes]
) -> None:
    before = set(shared.code_workers())
    assert py.publish("twice", files, to="everyone")["full_name"] == "py.twice"
    (process,) = set(shared.code_workers()) - before
    (output,) = bob.model("py.twice")(data=X).values()
    np.testing.assert_array_equal(output, 2 * X + 1)
    assert py.model("twice").metadata()["inputs"][0]["name"] == "data"
    wait_until(lambda: row_of(shared, "py.twice")["requests"] == 1)  # it is counted once it is answered
    with pytest.raises(MXNetError, match="no 55, please"):
        bob.model("py.twice")(data=np.full(3, 55, np.float32))
    assert process in shared.code_workers()
    # A further version has another process, and the first one's ends.
    assert py.publish("twice", files)["version"] == "2"
    wait_until(lambda: process not in shared.code_workers())
    (output,) = py.model("twice")(data=X).values()
    np.testing.assert_array_equal(output, 2 * X + 1)
    py.remove("twice")
    wait_until(lambda: not set(shared.code_workers()) - before)


def test_no_caller_sees_values_of_another(
    shared: Live, py: mx.serve.Client, bob: mx.serve.Client, ann: mx.serve.Client, tmp_path: Path
) -> None:
    """A forgetful operator writes a part of its output: the rest is zeros, and not what the last caller got there."""
    graph = mx.sym.Custom(mx.sym.Variable("data") * 1, name="part", op_type="publish_part")
    graph.save(str(tmp_path / "net-symbol.json"))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    py.publish("part", {**files, "net.params": packed({})}, to="everyone")
    for caller in (ann, bob):
        (output,) = caller.model("py.part")(data=X + 1).values()
        np.testing.assert_array_equal(output, np.stack([X[0] + 1, np.zeros(3, "f")]))


def test_it_is_started_again(shared: Live, py: mx.serve.Client, bob: mx.serve.Client, files: dict[str, bytes]) -> None:
    py.publish("twice", files, to=["bob"])
    with pytest.raises(UserCodeError, match="the model's own code ended its process"):
        bob.model("py.twice")(data=np.full(3, 99, np.float32))
    (output,) = bob.model("py.twice")(data=X).values()  # the client tries again while it starts
    np.testing.assert_array_equal(output, 2 * X + 1)
    assert row_of(shared, "py.twice")["state"] == "READY"


def test_what_is_refused(ann: mx.serve.Client, py: mx.serve.Client, files: dict[str, bytes]) -> None:
    with pytest.raises(ForbiddenError, match="expected a token with 'upload-python'"):
        ann.publish("twice", files)
    without = {name: content for name, content in files.items() if name != "net-ops.json"}
    with pytest.raises(BadRequestError, match=r"expected their sources in a NAME-ops\.json beside the symbol"):
        ann.publish("twice", without)
    saved = json.loads(files["net-ops.json"])
    for broken in (b"{", b"[]", b"{}", b"[" * 20_000, json.dumps({**saved, "sources": {}}).encode()):
        with pytest.raises(BadRequestError, match=r"operators: expected a file as Symbol\.save writes it"):
            py.publish("twice", {**files, "net-ops.json": broken})
    (source,) = saved["sources"].values()
    source["pieces"][0]["text"] = "raise ValueError('at home')"
    with pytest.raises(BadRequestError, match="sha256"):
        py.publish("twice", {**files, "net-ops.json": json.dumps(saved).encode()})
    with pytest.raises(BadRequestError):
        py.model("twice")(data=X)
