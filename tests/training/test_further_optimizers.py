"""AdamW and GroupAdaGrad against numbers of real MXNet 1.9.1, and optimizers by their names."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx

RANDOM = np.random.RandomState(3)
FIRST = RANDOM.rand(3, 2) - 0.5
GRADIENTS = [RANDOM.rand(3, 2) - 0.5 for _ in range(3)]
SECOND = RANDOM.rand(3, 2) - 0.5


def trained(optimizer: mx.optimizer.Optimizer, start: np.ndarray) -> np.ndarray:
    updater = mx.optimizer.get_updater(optimizer)
    weight = mx.nd.array(start)
    for gradient in GRADIENTS:
        updater(0, mx.nd.array(gradient), weight)
    return weight.asnumpy()


def test_adamw_is_mxnets_operator() -> None:
    """By mx.nd.contrib.adamw_update(lr=c, eta=0.1, wd=0.01, rescale_grad=0.5, epsilon=1e-6) three times in MXNet."""
    optimizer = mx.optimizer.create("adamw", learning_rate=0.1, wd=0.01, rescale_grad=0.5)
    expected = [[0.2408788, 0.4939754], [-0.0226306, 0.0192791], [0.6741575, 0.5335962]]
    np.testing.assert_allclose(trained(optimizer, FIRST), expected, rtol=0, atol=2e-6)  # three steps in float32


def test_adamw_trains_a_module_in_one_request_a_step() -> None:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer="adamw", optimizer_params={"learning_rate": 0.1})
    batch = mx.io.DataBatch([mx.nd.ones((4, 5))], [mx.nd.zeros((4,))])
    session = mx.cpu().session
    counts = []
    for _ in range(4):
        before = session.requests
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()
        counts.append(session.requests - before)
    assert counts[1:] == [1, 1, 1]
    assert module.get_outputs()[0].asnumpy()[0, 0] > 0.5


def test_group_adagrad_is_mxnets() -> None:
    optimizer = mx.optimizer.create("groupadagrad", learning_rate=0.1, rescale_grad=0.5, clip_gradient=0.1)
    assert isinstance(optimizer, mx.optimizer.contrib.GroupAdaGrad)
    np.testing.assert_allclose(
        SECOND, [[0.044649, 0.2803148], [-0.1936365, -0.2780421], [-0.1120287, 0.4363836]], atol=1e-6
    )
    expected = [[0.1536587, 0.4828168], [-0.0740583, -0.3508144], [0.1463108, 0.5164757]]
    np.testing.assert_allclose(trained(optimizer, SECOND), expected, rtol=0, atol=2e-6)


def test_what_group_adagrad_refuses() -> None:
    weight = mx.nd.ones((3, 2))
    with pytest.raises(AssertionError, match=r"GroupAdaGrad: expected no weight decay, got wd=0\.1"):
        mx.optimizer.get_updater(mx.optimizer.create("groupadagrad", wd=0.1))(0, weight, weight)
    with pytest.raises(AssertionError, match=r"GroupAdaGrad: expected weights of 2 dimensions, got shape \(3,\)"):
        mx.optimizer.create("groupadagrad").create_state(0, mx.nd.ones((3,)))


@pytest.mark.parametrize("name", ["lamb", "lars", "lbsgd", "adamw", "groupadagrad"])
def test_optimizers_by_name(name: str) -> None:
    assert type(mx.optimizer.create(name)).__name__.lower() == name
