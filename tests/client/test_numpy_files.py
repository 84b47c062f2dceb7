"""Networks that Gluon exported under numpy semantics: they load, and compute what MXNet 1.9.1 recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("recorded").joinpath("numpy_files.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", RECORDED["networks"])
def test_exported_networks(embedded: None, name: str) -> None:
    recorded = RECORDED["networks"][name]
    network = mx.sym.load_json(recorded["json"])
    (argument,) = network.list_arguments()
    with mx.util.np_shape():
        x, grad = mx.nd.array(RECORDED["data"]), mx.nd.zeros((2, 3))
        executor = network.bind(mx.cpu(), {argument: x}, {argument: grad})
        (out,) = executor.forward(is_train=True)
        executor.backward(mx.nd.ones(out.shape))
    expected = np.asarray(recorded["out"], np.float32)
    assert out.shape == expected.shape
    # Float32 sums and functions, rounded in another order.
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad.asnumpy(), recorded["grad"], rtol=1e-5, atol=1e-6)
    again = mx.sym.load_json(network.tojson())
    assert again.bind(mx.cpu(), {argument: x}).forward()[0].asnumpy().tolist() == out.asnumpy().tolist()


def test_over_http(engine: str) -> None:
    recorded = RECORDED["networks"]["reductions"]
    network = mx.sym.load_json(recorded["json"])
    (out,) = network.bind(mx.cpu(), {network.list_arguments()[0]: mx.nd.array(RECORDED["data"])}).forward()
    np.testing.assert_allclose(out.asnumpy(), recorded["out"], rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, f: f._np_reshape(x, newshape=(4, -1)), r"newshape: expected a shape of 6 elements, got \(4, \?\)"),
        (lambda x, f: f._np_reshape(x, newshape=(-2, 3)), r"expected sizes, of which one may be -1, got \(-2, 3\)"),
        (lambda x, f: f._npx_reshape(x, newshape=(-3, -1)), r"expected a dimension of size 1 for -3, got \(2, 3\)"),
        (lambda x, f: f._np_squeeze(x, axis=0), r"axis 0: expected size 1, got \(2, 3\)"),
        (lambda x, f: f._np_sum(x, initial=1.0), "initial: expected None, the only value that opbox knows, got 1.0"),
        (lambda x, f: f._np_dot(x, x), r"expected \(3\), got|expected \(3,|expected \(3, \?\), got \(2, 3\)"),
        (lambda x, f: f._np_dot(x, mx.nd.ones((1, 3, 2))), r"b: expected at most 2 dimensions, got \(1, 3, 2\)"),
        (lambda x, f: f._npi_greater(x, mx.nd.ones(4)), r"expected shapes that broadcast together, got \(2, 3\)"),
    ],
)
def test_what_is_refused(embedded: None, call: Any, sentence: str) -> None:
    with pytest.raises(mx.MXNetError, match=sentence):
        call(mx.nd.array(RECORDED["data"]), mx.nd._internal).asnumpy()


def test_a_file_with_a_function_that_is_not_there() -> None:
    text = RECORDED["networks"]["functions"]["json"].replace('"_npi_exp"', '"_npi_polyval"')
    with pytest.raises(mx.MXNetError, match="'_npi_polyval'"):
        mx.sym.load_json(text)
