"""A new operator takes its file and a row: the table's checks, the catalogue, `mx.nd` and `mx.sym` then have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_service.engine import load_plugin
from tests.cases.case import Case

from .checks import check_inplace, check_requests
from .harness import Run

NAME = "test_scaled_square"

# The operator's file: formula, params, rules, gradient, compute.
FILE = '''
"""test_scaled_square: out = scale * data^2, elementwise."""

from opbox_ops import register
from opbox_ops.gradient import backward_node
from opbox_ops.infer import all_same_float
from opbox_ops.params import Field, Float, Params
from opbox_ops.registry import register_backward


class ScaledSquareParams(Params):
    scale: Float = Field(1.0, description="What the squares are multiplied by.")


op = register("test_scaled_square", ScaledSquareParams, doc="Squares, times a number.")
backward = register_backward(
    "_backward_test_scaled_square", ScaledSquareParams, inputs=("gout", "data"), outputs=("gdata",)
)


@op.infer_shape
def _(p, ins, outs):
    outs.merge(0, ins.merge(0, outs[0]))


op.infer_type(all_same_float)


@op.gradient
def _(node, ograds):
    return backward_node("_backward_test_scaled_square", node, [*ograds, *node.inputs])


@op.compute()
def _(p, ctx, inputs, outputs):
    ctx.xp.multiply(inputs[0], inputs[0], out=outputs[0])
    outputs[0] *= p.scale


@backward.compute()
def _(p, ctx, inputs, outputs):
    ctx.xp.multiply(inputs[0], inputs[1], out=outputs[0])
    outputs[0] *= 2 * p.scale
'''

# Its row.
ROW = Case(NAME, {"data": (3, 4)}, {"scale": 1.5})


@pytest.fixture(scope="module", autouse=True)
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path: Path = tmp_path_factory.mktemp("operators") / "scaled_square.py"
    path.write_text(FILE)
    load_plugin(path)
    mx.refresh_operators()
    yield
    registry.unregister(NAME)
    registry.unregister(f"_backward_{NAME}")


def test_the_checks_of_the_table_take_its_row() -> None:
    run = Run(ROW, "float64", backend_for("cpu"))
    (out,) = run.forward()
    data = run.arrays["data"]
    np.testing.assert_allclose(out, 1.5 * data**2)
    gradient = run.backward()["data"]
    np.testing.assert_allclose(gradient, 3 * data * run.heads()[0])
    for call in run.calls:
        check_requests(call)
        check_inplace(call)


def test_the_catalogue_has_it() -> None:
    description = json.loads(json.dumps(registry.get(NAME).json()))
    assert description["params"]["properties"]["scale"]["description"] == "What the squares are multiplied by."


def test_arrays_and_symbols_have_it() -> None:
    x = mx.nd.array([1, 2, 3])
    assert getattr(mx.nd, NAME)(x, scale=2).asnumpy().tolist() == [2, 8, 18]
    net = getattr(mx.sym, NAME)(mx.sym.Variable("x"), scale=2, name="squares")
    assert net.infer_shape(x=(3,))[1] == [(3,)]
    executor = net.simple_bind(mx.cpu(), x=(3,))
    executor.forward(is_train=True, x=x)
    executor.backward(mx.nd.ones((3,)))
    assert executor.grad_dict["x"].asnumpy().tolist() == [4, 8, 12]


def test_its_parameters_are_checked() -> None:
    with pytest.raises(mx.MXNetError, match="scale"):
        getattr(mx.nd, NAME)(mx.nd.ones((2,)), scale="many").asnumpy()
