"""Whole networks: what the ONNX model and what comes back from it give is what opbox gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from onnx import helper, numpy_helper

from .models import drawn, exported, forward, imported, same


def lenet() -> Any:
    net = mx.sym.Variable("data")
    for i, filters in enumerate((4, 6)):
        net = mx.sym.Activation(mx.sym.Convolution(net, kernel=(5, 5), num_filter=filters), act_type="tanh")
        net = mx.sym.Pooling(net, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{i}")
    net = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=20), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=10), name="softmax")


def resnet() -> Any:
    def unit(data: Any, filters: int, stride: int) -> Any:
        same_size: Any = {"kernel": (3, 3), "pad": (1, 1), "num_filter": filters, "no_bias": True}
        first = mx.sym.Activation(mx.sym.BatchNorm(data, fix_gamma=False, eps=2e-5), act_type="relu")
        net = mx.sym.Convolution(
            first, kernel=(3, 3), stride=(stride,) * 2, pad=(1, 1), num_filter=filters, no_bias=True
        )
        net = mx.sym.Activation(mx.sym.BatchNorm(net, fix_gamma=False), act_type="relu")
        net = mx.sym.Convolution(net, **same_size)
        return net + mx.sym.Convolution(first, kernel=(1, 1), stride=(stride,) * 2, num_filter=filters, no_bias=True)

    net = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=True)
    net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True)
    net = unit(unit(net, 4, 1), 8, 2)
    net = mx.sym.Activation(mx.sym.BatchNorm(net), act_type="relu")
    net = mx.sym.Flatten(mx.sym.Pooling(net, global_pool=True, pool_type="avg", kernel=(7, 7)))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=5), name="softmax")


def vgg() -> Any:
    net = mx.sym.Variable("data")
    for filters in (4, 8):
        for _ in range(2):
            net = mx.sym.relu(mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=filters))
        net = mx.sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pooling_convention="full")
    net = mx.sym.Dropout(mx.sym.relu(mx.sym.FullyConnected(net, num_hidden=12)), p=0.5)
    return mx.sym.softmax(mx.sym.FullyConnected(net, num_hidden=4))


def unrolled() -> Any:
    cell = mx.rnn.LSTMCell(num_hidden=6, prefix="lstm_")
    begin = [mx.sym.Variable("c0"), mx.sym.Variable("h0")]
    outputs, _ = cell.unroll(3, inputs=mx.sym.Variable("data"), begin_state=begin, layout="NTC", merge_outputs=True)
    return mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 6)), num_hidden=3)


NETWORKS: list[tuple[Any, dict[str, tuple[int, ...]]]] = [
    (lenet, {"data": (2, 1, 28, 28)}),
    (resnet, {"data": (2, 3, 12, 12)}),
    (vgg, {"data": (1, 3, 13, 13)}),
    (unrolled, {"data": (2, 3, 4), "c0": (2, 6), "h0": (2, 6)}),
]


@pytest.mark.parametrize(("network", "shapes"), NETWORKS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_network_keeps_its_numbers(network: Any, shapes: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    net, path = network(), tmp_path / "net.onnx"
    params = drawn(net, **shapes)
    feeds = {name: np.random.RandomState(1).uniform(-1, 1, shape).astype("float32") for name, shape in shapes.items()}
    inputs = [name for name in net.list_inputs() if name in shapes]
    assert mx.onnx.export_model(net, params, [shapes[name] for name in inputs], onnx_file_path=path) == str(path)
    expected = forward(net, feeds, params)
    same(exported(path, feeds), expected)
    same(imported(path, feeds), expected)
    data = mx.onnx.get_model_metadata(path)
    assert data["input_tensor_data"] == [(name, shapes[name], 1) for name in inputs]
    assert [shape for _, shape in data["output_tensor_data"]] == [array.shape for array in expected]


@pytest.mark.parametrize("network", [lenet, resnet])
def test_a_batch_may_have_any_size(network: Any, tmp_path: Path) -> None:
    net, path = network(), tmp_path / "net.onnx"
    side = 28 if network is lenet else 12
    shape = (1, 1 if network is lenet else 3, side, side)
    params = drawn(net, data=shape)
    mx.onnx.export_model(net, params, [shape], onnx_file_path=path, dynamic=True)
    feeds = {"data": np.random.RandomState(1).uniform(-1, 1, (5, *shape[1:])).astype("float32")}
    same(exported(path, feeds), forward(net, feeds, params))
    same(imported(path, feeds), forward(net, feeds, params))
    ((_, sizes, _),) = mx.onnx.get_model_metadata(path)["input_tensor_data"]
    assert sizes[:2] == (0, shape[1])  # the parameters fix the channels
    mx.onnx.export_model(
        net, params, [shape], onnx_file_path=path, dynamic=True, dynamic_input_shapes=[(None, *shape[1:])]
    )
    ((_, sizes, _),) = mx.onnx.get_model_metadata(path)["input_tensor_data"]
    assert sizes == (0, *shape[1:])


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_recurrent_layers_begin_with_zeros_for_any_batch(mode: str, tmp_path: Path) -> None:
    cell = mx.rnn.FusedRNNCell(4, num_layers=2, mode=mode, bidirectional=True, prefix="layer_")
    net, _ = cell.unroll(3, mx.sym.Variable("data"), layout="TNC", merge_outputs=True)
    params, path = drawn(net, data=(3, 2, 5)), tmp_path / "net.onnx"
    mx.onnx.export_model(net, params, [(3, 2, 5)], onnx_file_path=path, dynamic=True)
    ((_, sizes, _),) = mx.onnx.get_model_metadata(path)["input_tensor_data"]
    assert sizes == (0, 0, 5)
    feeds = {"data": np.random.RandomState(1).uniform(-1, 1, (4, 7, 5)).astype("float32")}
    same(exported(path, feeds), forward(net, feeds, params))
    same(imported(path, feeds), forward(net, feeds, params))


def test_a_module_and_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8))
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.relu(data), num_hidden=3), name="softmax")
    mod = mx.mod.Module(net)
    mod.bind([("data", (4, 5))], [("softmax_label", (4,))], for_training=False)
    mod.init_params(mx.init.Xavier())
    arguments, states = mod.get_params()
    mx.model.save_checkpoint("mlp", 3, net, arguments, states)
    feeds = {"data": np.random.RandomState(2).uniform(-1, 1, (4, 5)).astype("float32")}
    expected = forward(net, feeds, {name: value.asnumpy() for name, value in {**arguments, **states}.items()})
    plain = {**arguments, **states}
    prefixed = {f"arg:{k}": v for k, v in arguments.items()} | {f"aux:{k}": v for k, v in states.items()}
    for sym, params in (
        (net, plain),
        (net, prefixed),
        (net, [arguments, states]),
        (net, (arguments, states)),
        ("mlp-symbol.json", "mlp-0003.params"),
        (Path("mlp-symbol.json"), prefixed),
    ):
        assert mx.onnx.export_model(sym, params, [(4, 5)]) == "model.onnx"
        same(exported(Path("model.onnx"), feeds), expected)
    net, arguments, states = mx.contrib.onnx.import_model("model.onnx")
    assert sorted(states) == sorted(name for name in plain if "moving" in name)
    assert mx.onnx.get_model_metadata("model.onnx")["output_tensor_data"] == [("softmax", (4, 3))]
    again = mx.mod.Module(net, label_names=[])
    again.bind([("data", (4, 5))], for_training=False)
    again.set_params(arguments, states)
    batch = mx.io.DataBatch([mx.nd.array(feeds["data"])], None)
    again.forward(batch, is_train=False)
    same([again.get_outputs()[0].asnumpy()], expected)


def test_a_shape_that_is_computed_in_the_model_is_worked_out(tmp_path: Path) -> None:
    """As MXNet's exporter writes FullyConnected: onnx infers no shape behind such a Reshape."""
    nodes = [
        helper.make_node("Shape", ["data"], ["whole"]),
        helper.make_node("Shape", ["whole"], ["rank"]),
        helper.make_node("Sub", ["rank", "one"], ["last"]),
        helper.make_node("Slice", ["whole", "zero", "last"], ["head"]),
        helper.make_node("Concat", ["head", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["data", "target"], ["same"]),
        helper.make_node("Softmax", ["same"], ["out"], axis=-1),
    ]
    constants = [
        numpy_helper.from_array(np.array([v], np.int64), name) for name, v in (("one", 1), ("zero", 0), ("minus", -1))
    ]
    values = [helper.make_tensor_value_info(name, 1, [2, 3]) for name in ("data", "out")]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], constants)
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString())
    feeds = {"data": np.random.RandomState(3).uniform(-1, 1, (2, 3)).astype("float32")}
    same(imported(path, feeds), exported(path, feeds))
