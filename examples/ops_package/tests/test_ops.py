"""The package's operators, through the engine in this process."""

from pathlib import Path

import numpy as np
import opbox_example_ops
import pytest

import opbox as mx
import opbox_ops
from opbox.lint import lint
from opbox.test_utils import check_numeric_gradient, check_symbolic_backward, check_symbolic_forward

RNG = np.random.default_rng(0)
FOLDER = Path(opbox_example_ops.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _operators():
    mx.refresh_operators()


def test_scaled_shift():
    net = mx.sym.scaled_shift(mx.sym.Variable("data"), mx.sym.Variable("shift"), scale=2.0)
    data, shift, head = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=3), RNG.normal(size=(2, 3, 4, 5))
    check_symbolic_forward(net, [data, shift], [2 * data + shift[:, None, None]])
    for request in ("write", "add", "null"):
        check_symbolic_backward(net, [data, shift], [head], [2 * head, head.sum(axis=(0, 2, 3))], grad_req=request)
    check_numeric_gradient(net, [data[:, :, :2, :2], shift], dtype=np.float64)


def test_shapes_go_both_ways():
    net = mx.sym.scaled_shift(mx.sym.Variable("data"), mx.sym.Variable("shift"))
    assert net.infer_shape(data=(2, 3, 4, 5)) == ([(2, 3, 4, 5), (3,)], [(2, 3, 4, 5)], [])
    assert net.infer_shape(data=(2, 0, 4, 5), shift=(3,))[1] == [(2, 3, 4, 5)]
    with pytest.raises(mx.MXNetError, match="shift"):
        net.infer_shape(data=(2, 3, 4, 5), shift=(4,))


def test_running_center_learns_in_training_only():
    net = mx.sym.running_center(mx.sym.Variable("data"), momentum=0.5, name="rc")
    assert net.list_auxiliary_states() == ["rc_center"]
    data = RNG.normal(size=(4, 3)).astype(np.float32)
    executor = net.simple_bind(mx.cpu(), data=(4, 3))
    executor.arg_dict["data"][:] = data
    executor.forward(is_train=False)
    np.testing.assert_allclose(executor.outputs[0].asnumpy(), data)
    executor.forward(is_train=True)
    np.testing.assert_allclose(executor.outputs[0].asnumpy(), data - data.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(executor.aux_dict["rc_center"].asnumpy(), data.mean(axis=0) / 2, rtol=1e-5, atol=1e-6)


def test_a_parameter_out_of_range():
    with pytest.raises(mx.MXNetError, match="momentum"):
        mx.sym.running_center(mx.sym.Variable("data"), momentum=1.5)


def test_an_attribute_of_its_own():
    assert opbox_ops.attribute("FCost")["running_center"](None, [(4, 3)]) == 36


@pytest.mark.parametrize("name", ["scaled_shift", "running_center"])
def test_lint(name):
    report = lint(FOLDER / f"{name}.py")
    assert report.ok, report.table()
