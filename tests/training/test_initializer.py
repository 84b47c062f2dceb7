"""Initializers: MXNet's fixed values, rules by name, messages and texts; the spread of the drawn ones."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import opbox as mx
from tests.training.recorded import VALUES

RECORDED = VALUES["initializers"]


@pytest.mark.parametrize("key", RECORDED["values"])
def test_fixed_values_are_mxnets(key):
    name, dumped, shape = json.loads(key)
    array = mx.nd.ones(tuple(shape)) * -7
    mx.init.create(dumped)(mx.init.InitDesc(name), array)
    np.testing.assert_allclose(array.asnumpy(), RECORDED["values"][key], rtol=1e-6)


def drawn(initializer, shape, name="fc_weight"):
    array = mx.nd.zeros(shape)
    initializer(mx.init.InitDesc(name), array)
    return array.asnumpy()


SHAPES = [(300, 200), (64, 32, 5, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", ["avg", "in", "out"])
def test_xaviers_spread(shape, factor):
    receptive = math.prod(shape[2:])
    fans = {"in": shape[1] * receptive, "out": shape[0] * receptive}
    fans["avg"] = (fans["in"] + fans["out"]) / 2
    mx.random.seed(1)
    values = drawn(mx.init.Xavier("uniform", factor, 2.5), shape)
    bound = math.sqrt(2.5 / fans[factor])
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > bound * 0.99
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    values = drawn(mx.init.Xavier("gaussian", factor, 2.5), shape)
    assert values.std() == pytest.approx(bound, rel=0.02)
    assert abs(values.mean()) < bound * 0.02


def test_the_other_distributions():
    mx.random.seed(1)
    values = drawn(mx.init.Uniform(0.3), (400, 100))
    assert 0.299 < np.abs(values).max() <= 0.3
    assert drawn(mx.init.Normal(0.3), (400, 100)).std() == pytest.approx(0.3, rel=0.02)
    he = drawn(mx.init.MSRAPrelu("in", 0.5), (400, 100))
    assert he.std() == pytest.approx(math.sqrt(2 / 1.25 / 100), rel=0.02)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (4, 3, 2, 2)])
def test_orthogonal(kind, shape):
    values = drawn(mx.init.Orthogonal(1.5, kind), shape).reshape(shape[0], -1)
    short = values if values.shape[0] <= values.shape[1] else values.T
    np.testing.assert_allclose(short @ short.T, np.eye(len(short)) * 1.5**2, atol=1e-5)


def test_the_same_seed_draws_the_same():
    def once():
        mx.random.seed(9)
        return drawn(mx.init.Xavier(), (5, 4))

    np.testing.assert_array_equal(once(), once())


@pytest.mark.parametrize(
    ("options", "name", "shape", "words"),
    [
        ({}, "softmax_label", (3, 3), "expected a name that ends in weight, bias, gamma"),
        ({}, "fc_weight", (3,), r"expected two dimensions or more, got shape \(3,\)"),
        ({"factor_type": "mid"}, "fc_weight", (3, 3), "factor_type: expected avg, in or out, got 'mid'"),
        ({"rnd_type": "odd"}, "fc_weight", (3, 3), "rnd_type: expected uniform or gaussian, got 'odd'"),
    ],
)
def test_what_cannot_be_initialized(options, name, shape, words):
    with pytest.raises(ValueError, match=words):
        mx.init.Xavier(**options)(mx.init.InitDesc(name), mx.nd.ones(shape))


def test_texts_are_mxnets_and_read_back():
    initializers = [
        mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        mx.init.MSRAPrelu(),
        mx.init.LSTMBias(forget_bias=2.0),
        mx.init.Orthogonal(),
    ]
    assert [one.dumps() for one in initializers] == RECORDED["dumps"]
    assert [mx.init.create(text) for text in RECORDED["dumps"]] == initializers
    assert json.loads(mx.init.Constant(np.array([1.0, 2.0])).dumps()) == ["constant", {"value": [1.0, 2.0]}]


def test_a_variables_own_initializer_goes_first():
    desc = mx.init.InitDesc("anything", {"__init__": mx.init.Constant(4.0).dumps()})
    array = mx.nd.zeros((2,))
    mx.init.Uniform()(desc, array)
    assert array.asnumpy().tolist() == [4.0, 4.0]


def test_mixed_takes_the_first_pattern():
    mixed = mx.init.Mixed(["fc1_.*", ".*bias", ".*"], [mx.init.One(), mx.init.Constant(9), mx.init.Constant(5)])
    for name, expected in [("fc1_weight", 1.0), ("fc1_bias", 0.0), ("fc2_bias", 0.0), ("fc2_weight", 5.0)]:
        assert drawn(mixed, (2,), name).tolist() == [expected] * 2
    with pytest.raises(ValueError, match="parameter 'other' is matched by no pattern"):
        mx.init.Mixed(["fc.*"], [mx.init.One()])(mx.init.InitDesc("other"), mx.nd.zeros((1,)))


def test_load_takes_what_is_there():
    load = mx.init.Load({"arg:fc_weight": mx.nd.ones((2,)) * 3}, default_init=mx.init.Zero())
    assert drawn(load, (2,)).tolist() == [3.0, 3.0]
    assert drawn(load, (2,), "other_weight").tolist() == [0.0, 0.0]
    with pytest.raises(AssertionError, match=r"expected shape \(3,\), got \(2,\) in the file"):
        drawn(load, (3,))
    with pytest.raises(AssertionError, match=r"parameter 'other' is not in the file"):
        drawn(mx.init.Load({}), (2,), "other")


def test_plain_names_still_work_with_a_warning():
    array = mx.nd.zeros((2,))
    with pytest.warns(DeprecationWarning, match="InitDesc"):
        mx.init.Uniform()("bn_moving_var", array)
    assert array.asnumpy().tolist() == [1.0, 1.0]


def test_a_class_of_ones_own():
    @mx.init.register
    class Sevens(mx.init.Initializer):
        def _init_weight(self, name, arr):
            arr[:] = 7

    assert drawn(mx.init.create("sevens"), (2,)).tolist() == [7.0, 7.0]
    with pytest.raises(AssertionError, match=r"initializer 'eights': expected one of .*sevens"):
        mx.init.create("eights")


def test_verbosity_logs_each_parameter(caplog):
    caplog.set_level("INFO")
    drawn(mx.init.One().set_verbosity(True), (4,))
    assert "fc_weight filled as weight: 1.0" in caplog.text
