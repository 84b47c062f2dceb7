"""Values of other shapes than what they are written to: what MXNet broadcasts is, the rest is refused.

Acceptance, values and classes of errors were compared with MXNet 1.9.1's for these shapes and calls.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import ShapeError, ValueShapeError

pytestmark = pytest.mark.usefixtures("engine")

SHAPES = [(), (1,), (2,), (4,), (1, 1), (4, 1), (1, 4), (2, 4), (1, 1, 1), (2, 1, 4), (1, 4, 2), (8,), (0,), (1, 0)]
ROWS = [shape for shape in SHAPES if shape not in ((), (0,), (1, 0))]


def values(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


KEYS = {
    "whole": (slice(None), lambda s: s),
    "row": (1, lambda s: (3, *s)),
    "rows": (slice(1, 3), lambda s: (s[0] + 2, *s[1:])),
    "columns": ((Ellipsis, slice(0, -1)), lambda s: (*s[:-1], s[-1] + 1)),
    "list": ([0, 2], lambda s: (3, *s[1:])),
}


@pytest.mark.parametrize("of", ["numpy", "engine"])
@pytest.mark.parametrize("key", KEYS)
def test_assignment_takes_what_numpy_takes(key: str, of: str) -> None:
    index, whole = KEYS[key]
    for target, source in itertools.product(ROWS, SHAPES):
        if of == "engine" and source == ():
            continue
        expected = np.zeros(whole(target), np.float32)
        array = mx.nd.zeros(expected.shape)
        value = values(source)
        got = value if of == "numpy" else mx.nd.array(value)
        try:
            expected[index] = value
        except ValueError:
            with pytest.raises(ValueError, match=r"assignment: expected a value of shape .* or one that broadcasts"):
                array[index] = got
            continue
        array[index] = got
        np.testing.assert_array_equal(array.asnumpy(), expected, err_msg=f"{expected.shape}[{key}] = {source}")


def test_a_copy_goes_to_an_array_of_its_shape() -> None:
    for target, source in itertools.permutations(ROWS, 2):
        with pytest.raises(ShapeError, match="copyto: expected a target of shape"):
            mx.nd.array(values(source)).copyto(mx.nd.zeros(target))


def test_an_executor_repeats_no_value() -> None:
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn")
    executor = net.simple_bind(mx.cpu(), data=(4, 3))
    for wrong in (mx.nd.ones((1,)), np.ones((1,), np.float32), mx.nd.ones((1, 3)), mx.nd.ones((3, 1)), [1.0]):
        with pytest.raises(
            mx.MXNetError, match=r"copy_params_from: argument 'bn_gamma': expected a value of shape \(3,\), got"
        ):
            executor.copy_params_from({"bn_gamma": wrong})
        with pytest.raises(
            mx.MXNetError, match="copy_params_from: auxiliary state 'bn_moving_var': expected a value of"
        ):
            executor.copy_params_from({}, {"bn_moving_var": wrong})
    with pytest.raises(ValueError, match=r"argument 'data': expected shape \(4, 3\), as bound, got \(1, 3\)"):
        executor.forward(data=mx.nd.ones((1, 3)))
    executor.copy_params_from({"bn_gamma": np.array([1, 2, 3], np.float64)})
    assert executor.arg_dict["bn_gamma"].asnumpy().tolist() == [1, 2, 3]


def fed(label: tuple[int, ...], rows: int = 4) -> mx.mod.Module:
    """A module bound with data of (rows, 2) and a label, which the network returns."""
    outputs = [mx.sym.Variable("data") * 1, mx.sym.BlockGrad(mx.sym.Variable("target") * 1)]
    mod = mx.mod.Module(mx.sym.Group(outputs), label_names=["target"])
    mod.bind([("data", (rows, 2))], [("target", label)])
    mod.init_params()
    return mod


@pytest.mark.parametrize("of", ["numpy", "engine", "host"])
@pytest.mark.parametrize(
    ("bound", "got"),
    [
        ((4, 1), (1, 1)),
        ((4, 1), (4,)),
        ((4,), (4, 1)),
        ((4,), (1,)),
        ((4, 4, 5), (4, 1, 5)),
        ((4, 2), (1, 2)),
        ((4,), (8,)),
    ],
)
def test_a_label_of_another_shape_is_not_repeated(bound: tuple[int, ...], got: tuple[int, ...], of: str) -> None:
    mod = fed(bound)
    label: Any = np.ones(got, np.float32)
    if of != "numpy":
        label = (
            mx.nd.array(label) if of == "engine" else next(iter(mx.io.NDArrayIter(label, batch_size=got[0]))).data[0]
        )
    batch = mx.io.DataBatch([np.ones((4, 2), np.float32)], [label])
    with pytest.raises(mx.MXNetError) as error:
        mod.forward(batch)
    assert str(error.value) == f"batch: target: expected a value of shape {bound}, got {got}"


def test_data_and_label_have_one_batch_size() -> None:
    mod = fed((4, 1))
    with pytest.raises(
        AssertionError, match=r"target: expected the batch size of data, 2, on axis 0, .* got shape \(1, 1\)"
    ):
        mod.forward(mx.io.DataBatch([np.ones((2, 2))], [np.ones((1, 1))]))
    with pytest.raises(AssertionError, match="target: expected the batch size of data, 4, on axis 0"):
        fed((1, 1))
    mod = fed((4, 1))
    mod.forward(mx.io.DataBatch([np.ones((2, 2))], [np.ones((2, 1))]))
    assert mod.get_outputs()[1].shape == (2, 1)
    outputs = [mx.sym.Variable("data") * 1, mx.sym.Variable("target") * 1]
    mod = mx.mod.Module(mx.sym.Group(outputs), label_names=["target"])
    mod.bind([mx.io.DataDesc("data", (7, 4), layout="TN")], [mx.io.DataDesc("target", (4,))])


def test_states_keep_their_shape() -> None:
    total = mx.sym.Variable("data") + mx.sym.Variable("memory")
    mod = mx.mod.Module(total, label_names=None, state_names=["memory"])
    mod.bind([("data", (4, 2))], for_training=False)
    mod.init_params()
    for wrong in (mx.nd.ones((1, 2)), np.ones((4, 1)), [mx.nd.ones((1, 2))], mx.nd.ones((2,))):
        with pytest.raises(mx.MXNetError, match=r"set_states: memory: expected a value of shape \(4, 2\), got"):
            mod.set_states(states=[wrong])
    with pytest.raises(ValueError, match=r"set_states: expected 1 states \(memory\), got 2"):
        mod.set_states(states=[mx.nd.ones((4, 2))] * 2)
    for state in (mx.nd.ones((4, 2)) * 2, [mx.nd.ones((4, 2)) * 2], np.full((4, 2), 2)):
        mod.set_states(states=[state])
        assert mod.get_states()[0].asnumpy().tolist() == [[2, 2]] * 4
        mod.set_states(value=np.array([5, 6], np.float32))  # which MXNet broadcasts
        assert mod.get_states()[0].asnumpy().tolist() == [[5, 6]] * 4


def test_parameters_keep_their_shape() -> None:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    mod = mx.mod.Module(net, label_names=None)
    mod.bind([("data", (4, 2))])
    for call in (mod.init_params, mod.set_params):
        with pytest.raises(ValueShapeError, match=r"fc_bias: expected a value of shape \(3,\), got \(1,\)"):
            call(arg_params={"fc_weight": mx.nd.ones((3, 2)), "fc_bias": mx.nd.ones((1,))}, aux_params={})
