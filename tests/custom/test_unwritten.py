"""Operators that forget to write an output or a gradient: it is zeros, and a warning and `opbox lint` say so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox.lint import lint
from opbox_service.custom import unwritten
from tests.contract.live import TOKENS, Live

SHAPE = (3, 200)


class Forgets(mx.operator.CustomOp):
    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[1], req[1], in_data[0] * 2)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[1], req[1], out_grad[1])


@mx.operator.register("forgets")
class ForgetsProp(mx.operator.CustomOpProp):
    def list_arguments(self) -> list[str]:
        return ["data", "more"]

    def list_outputs(self) -> list[str]:
        return ["first", "second"]

    def infer_shape(self, in_shape: Any) -> Any:
        return in_shape, [in_shape[0], in_shape[0]], []

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
        return Forgets()


class ForgetsAll(mx.operator.NumpyOp):
    def forward(self, in_data: Any, out_data: Any) -> None:
        pass

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        pass


class ForgetsArrays(mx.operator.NDArrayOp):
    def forward(self, in_data: Any, out_data: Any) -> None:
        pass

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        in_grad[0][:] = 5


class WritesInPlace(mx.operator.NumpyOp):
    def forward(self, in_data: Any, out_data: Any) -> None:
        out_data[0][:, :100] = 1
        out_data[0][:, 100:] = in_data[0][:, 100:]

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        for row in range(SHAPE[0]):
            in_grad[0][row] = out_grad[0][row]


class WritesPart(mx.operator.NumpyOp):
    def forward(self, in_data: Any, out_data: Any) -> None:
        out_data[0][0] = in_data[0][0]

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        in_grad[0][0] = out_grad[0][0]


class WritesPartOfArrays(mx.operator.NDArrayOp):
    def forward(self, in_data: Any, out_data: Any) -> None:
        out_data[0][1:2] = in_data[0][1:2]

    def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
        in_grad[0][1:2] = out_grad[0][1:2]


@pytest.fixture(params=["embedded", "thread", "process"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the operators run: in this process, in the server's, or in a process for the session's code."""
    monkeypatch.delenv("OPBOX_URL", raising=False)
    fixtures = {"thread": "live", "process": "isolating"}
    transport: Any = None
    if request.param in fixtures:
        transport = HttpTransport(request.getfixturevalue(fixtures[request.param]).url, TOKENS["py"])
    connection.use(transport)
    yield request.param
    connection.use(None)


def heard_in(runs: int, net: Any, names: Any = ("x",), dtype: str = "float32") -> tuple[list[str], Any, Any]:
    """The warnings of forward and backward, the last outputs and the gradients."""
    values = np.arange(1, 1 + np.prod(SHAPE), dtype=dtype).reshape(SHAPE)
    executor = net.simple_bind(mx.cpu(), type_dict=dict.fromkeys(names, dtype), **dict.fromkeys(names, SHAPE))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(runs):
            executor.forward(is_train=True, **dict.fromkeys(names, values))
            outputs = [output.asnumpy() for output in executor.outputs]
            executor.backward([mx.nd.ones(SHAPE, dtype=dtype)] * len(outputs))
            grads = {name: array.asnumpy() for name, array in executor.grad_dict.items()}
    return [str(one.message) for one in caught], outputs, grads


def stirred(x: Any) -> Any:
    """Operators whose results lie in the memory that is used again."""
    return mx.sym.exp(mx.sym.sin(x) * 3) + 1


def test_outputs_that_are_not_written_are_zeros(place: str) -> None:
    x, z = mx.sym.Variable("x"), mx.sym.Variable("z")
    both = mx.sym.Custom(stirred(x), stirred(z), op_type="forgets", name="both")
    old = ForgetsAll()(data=stirred(x), name="old")
    arrays = ForgetsArrays()(data=stirred(z), name="arrays")
    net = mx.sym.Group([both[0] + 1, both[1] * 1, old * 1, arrays * 1])
    sentences, outputs, grads = heard_in(3, net, ("x", "z"))
    assert [(out == value).all() for out, value in zip(outputs, (1, None, 0, 0), strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    np.testing.assert_allclose(outputs[1], 2 * stirred_values(), rtol=1e-4)
    assert sorted(sentences) == [
        "ForgetsAll: backward: expected gradient 0 ('data') to be written, got nothing, and gives zeros: write "
        "in_grad[0][:] = …",
        "ForgetsAll: forward: expected output 0 ('output') to be written, got nothing, and gives zeros: write "
        "out_data[0][:] = …",
        "ForgetsArrays: forward: expected output 0 ('output') to be written, got nothing, and gives zeros: write "
        "out_data[0][:] = …",
        "forgets: backward: expected gradient 0 ('data') to be written, got nothing, and gives zeros: write "
        "self.assign(in_grad[0], req[0], value)",
        "forgets: forward: expected output 0 ('first') to be written, got nothing, and gives zeros: write "
        "self.assign(out_data[0], req[0], value)",
    ]
    assert not grads["x"].any()
    assert np.isfinite(grads["z"]).all()
    assert grads["z"].any()


def stirred_values() -> Any:
    values = np.arange(1, 1 + np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    return np.exp(np.sin(values) * 3) + 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8", "int8"])
def test_of_every_type(engine: str, dtype: str) -> None:
    net = ForgetsAll()(data=mx.sym.Variable("x") + 1, name="old") * 1
    sentences, outputs, grads = heard_in(2, net, dtype=dtype)
    assert not outputs[0].any()
    assert not grads["x"].any()
    assert len(sentences) == (2 if dtype in unwritten.PATTERNS else 0)


def test_writes_in_place_count(place: str) -> None:
    net = WritesInPlace()(data=mx.sym.Variable("x") * 1, name="old") * 1
    sentences, outputs, grads = heard_in(2, net)
    assert sentences == []
    assert (outputs[0][:, :100] == 1).all()
    assert (outputs[0][:, 100:] == np.arange(1, 601, dtype=np.float32).reshape(SHAPE)[:, 100:]).all()
    assert (grads["x"] == 1).all()


def test_the_rest_of_an_output_that_is_written_in_part_is_zeros(place: str) -> None:
    x, z = mx.sym.Variable("x"), mx.sym.Variable("z")
    parts = [WritesPart()(data=stirred(x), name="first") * 1, WritesPartOfArrays()(data=stirred(z), name="second") * 1]
    _, outputs, grads = heard_in(2, mx.sym.Group(parts), ("x", "z"))
    for row, array in ((0, outputs[0]), (1, outputs[1]), (0, grads["x"]), (1, grads["z"])):
        assert array[row].all()
        assert not np.delete(array, row, axis=0).any()


def test_a_call_by_itself(place: str) -> None:
    x = mx.nd.ones(SHAPE)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first, second = mx.nd.Custom(x, x, op_type="forgets")
            assert not first.asnumpy().any()
            assert (second.asnumpy() == 2).all()
    assert caught == []  # it was said the first time


def test_nan_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    monkeypatch.setenv("OPBOX_UNWRITTEN", "nan")
    connection.use(None)
    sentences, outputs, _ = heard_in(1, ForgetsAll()(data=mx.sym.Variable("x"), name="old") * 1)
    assert np.isnan(outputs[0]).all()
    assert "got nothing, and gives NaN" in sentences[0]
    connection.use(None)


def test_nan_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    server = Live("process", tmp_path, OPBOX_UNWRITTEN="nan")
    try:
        connection.use(HttpTransport(server.url, TOKENS["py"]))
        _, outputs, _ = heard_in(1, ForgetsAll()(data=mx.sym.Variable("x"), name="old") * 1)
        assert np.isnan(outputs[0]).all()
    finally:
        connection.use(None)
        assert server.stop() == 0


def test_marks_leave_what_was_written_in_part() -> None:
    for size in (1, 5, 64, 65, 1000):
        array = np.full(size, 7, np.float32)
        mark = unwritten.Mark(array)
        mark.put()
        array[size // 2 :] = 3
        assert not mark.take()
        assert (array[: size // 2] == 7).all()
        assert (array[size // 2 :] == 3).all()


def test_lint_says_which_output(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "forgetful.py"
    path.write_text(
        "import opbox as mx\n"
        "class Op(mx.operator.CustomOp):\n"
        "    def forward(self, is_train, req, in_data, out_data, aux):\n"
        "        pass\n"
        "    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):\n"
        "        self.assign(in_grad[0], req[0], out_grad[0])\n"
        "@mx.operator.register('forgetful')\n"
        "class Prop(mx.operator.CustomOpProp):\n"
        "    def create_operator(self, ctx, in_shapes, in_dtypes):\n"
        "        return Op()\n"
    )
    report = lint(path)
    assert not report.ok
    detail = report.operators[0].cases[0].checks["shapes"].detail
    assert "op_output: forward leaves 12 of 12 elements unwritten: write in place" in detail
