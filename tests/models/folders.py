"""Folders of models for the tests: small networks with their parameters, as Module saves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import opbox as mx

FEATURES, CLASSES = 4, 3
ROUNDING = 1e-6
"""A product of many rows adds in another order than one of 1 row: units in the last place of values below 1."""
IMAGES = (5, 1, 6, 6)
UNKNOWN = "Request for unknown model: {} is not found: expected {}"
"""The error for a model or version that is none, by its name and what there is; Triton's begins so."""
INDEX = "one of POST /v2/repository/index"


def perceptron(scale: float = 1.0) -> tuple[mx.sym.Symbol, dict[str, mx.nd.NDArray]]:
    """A network with two layers and its parameters, multiplied by `scale`."""
    hidden = mx.sym.Activation(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1"), act_type="tanh"
    )
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name="fc2"), name="softmax")
    rng = np.random.default_rng(3)
    shapes = {"fc1_weight": (8, FEATURES), "fc1_bias": (8,), "fc2_weight": (CLASSES, 8), "fc2_bias": (CLASSES,)}
    params = {name: mx.nd.array(scale * rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    return net, params


def convolutional() -> tuple[mx.sym.Symbol, dict[str, mx.nd.NDArray], dict[str, mx.nd.NDArray]]:
    """A network with states, whose inner value `back0_output` has its examples on the second axis; both parameters."""
    net = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=2, kernel=(3, 3), name="conv0")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, name="bn0"), act_type="relu", name="relu0")
    net = mx.sym.FullyConnected(net, num_hidden=CLASSES, name="fc0")
    net = mx.sym.transpose(mx.sym.transpose(net, name="back0"), name="forth0")
    net = mx.sym.SoftmaxOutput(net, name="softmax")
    rng = np.random.default_rng(4)
    shapes, _, states = net.infer_shape(data=IMAGES)
    args, aux = (
        {name: mx.nd.array(rng.uniform(0.5, 1.5, shape)) for name, shape in zip(names, of, strict=True)}
        for names, of in ((net.list_arguments(), shapes), (net.list_auxiliary_states(), states))
    )
    return net, {name: array for name, array in args.items() if name not in ("data", "softmax_label")}, aux


def save(
    folder: Path,
    net: mx.sym.Symbol,
    params: dict[str, mx.nd.NDArray],
    toml: str = "",
    epoch: int = 1,
    aux: dict[str, mx.nd.NDArray] | None = None,
) -> None:
    """Write a version's files, and the model.toml of a model whose only version it is."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.model.save_checkpoint(str(folder / "net"), epoch, net, params, aux or {})
    if toml:
        (folder / "model.toml").write_text(toml)


def expected(x: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """The network's outputs, by the client's own executor."""
    net, params = perceptron(scale)
    executor = net.simple_bind(mx.cpu(), data=x.shape, grad_req="null")
    executor.copy_params_from(params, {}, allow_extra_params=True)
    return executor.forward(is_train=False, data=mx.nd.array(x))[0].asnumpy()
