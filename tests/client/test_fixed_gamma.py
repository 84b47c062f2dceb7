"""BatchNorm with fix_gamma: gamma counts as 1, inference leaves the argument as it is, training sets it to 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx

pytestmark = pytest.mark.usefixtures("engine")

SHAPES = {"images": (2, 16, 9, 9), "rows": (6, 5)}


def plain(data: Any, **attrs: Any) -> Any:
    return mx.sym.BatchNorm(data, name="norm", **attrs)


def batch_norm_relu(data: Any, **attrs: Any) -> Any:
    return mx.sym.Activation(plain(data, **attrs), act_type="relu")


def behind_a_convolution(data: Any, **attrs: Any) -> Any:
    for name in ("one", "two"):
        data = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=32, name=name)
        data = data if name == "two" else batch_norm_relu(data, **attrs)
    return data


def with_dropout(data: Any, **attrs: Any) -> Any:
    return mx.sym.Dropout(plain(data, **attrs), p=0.5)


def at_once(data: Any, **attrs: Any) -> Any:
    return mx.sym.contrib.BatchNormWithReLU(data, name="norm", **attrs)


NETWORKS = {
    "plain": plain,
    "relu": batch_norm_relu,
    "convolution": behind_a_convolution,
    "dropout": with_dropout,
    "at once": at_once,
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("grad_req", ["null", "write"])
@pytest.mark.parametrize(
    ("network", "kind"), [(name, "images") for name in NETWORKS] + [("plain", "rows"), ("dropout", "rows")]
)
def test_inference_leaves_gamma_as_it_is(network: str, kind: str, grad_req: str, dtype: str) -> None:
    shape = SHAPES[kind]
    data = np.random.RandomState(0).randn(*shape).astype(dtype)
    outputs = []
    for attrs, value in (({}, 3), ({"fix_gamma": False}, 1)):
        net = NETWORKS[network](mx.sym.Variable("data", dtype=dtype), **attrs)
        executor = net.simple_bind(mx.cpu(), grad_req=grad_req, type_dict={"data": dtype}, data=shape)
        for name, array in executor.arg_dict.items():
            array[:] = value if name == "norm_gamma" else (np.arange(array.size) % 5 - 2).reshape(array.shape) / 8
        executor.aux_dict["norm_moving_var"][:] = 0.5
        for _ in range(3):  # a weight is packed, and kernels are there, after the first
            out = executor.forward(is_train=False, data=data)[0].asnumpy()
            assert executor.arg_dict["norm_gamma"].asnumpy().tolist() == [value] * executor.arg_dict["norm_gamma"].size
        outputs.append(out)
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("use_global_stats", [False, True])
def test_training_sets_gamma_to_one(use_global_stats: bool) -> None:
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), name="norm", use_global_stats=use_global_stats)
    executor = net.simple_bind(mx.cpu(), data=(6, 5))
    executor.arg_dict["norm_gamma"][:] = 3
    executor.forward(is_train=True, data=np.random.RandomState(0).randn(6, 5))
    executor.backward(mx.nd.ones((6, 5)))
    assert executor.arg_dict["norm_gamma"].asnumpy().tolist() == [1] * 5
    assert executor.grad_dict["norm_gamma"].asnumpy().tolist() == [0] * 5


def test_predicting_changes_no_parameter() -> None:
    net = mx.sym.SoftmaxOutput(behind_a_convolution(mx.sym.Variable("data")), name="softmax", multi_output=True)
    mod = mx.mod.Module(net)
    mod.bind([("data", SHAPES["images"])], for_training=False)
    mod.init_params(mx.init.Xavier())
    mod.set_params({**mod.get_params()[0], "norm_gamma": mx.nd.ones((32,)) * 3}, mod.get_params()[1])
    mod.predict(mx.io.NDArrayIter(np.ones(SHAPES["images"], np.float32), batch_size=2))
    assert mod._exec.arg_dict["norm_gamma"].asnumpy().tolist() == [3] * 32
