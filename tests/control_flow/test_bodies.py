"""What bodies may hold: dropout, states of BatchNorm, users' operators; and loops in training, in files, shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import opbox as mx
from opbox_service.executor import bind
from opbox_service.graph.json import load

from .values import CPU, bound


@mx.operator.register("control_flow_square")
class Square(mx.operator.CustomOpProp):
    """data squared; keeps its input, for each step its own."""

    def list_arguments(self) -> list[str]:
        return ["data"]

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return SquareOperator()


class SquareOperator(mx.operator.CustomOp):
    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.inputs = in_data[0].asnumpy()
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], 2 * mx.nd.array(self.inputs) * out_grad[0])


def test_a_users_operator_has_an_instance_for_each_step(tmp_path: Path) -> None:
    def body(x: Any, s: Any) -> Any:
        return mx.sym.Custom(x + s, op_type="control_flow_square"), s + x

    net = mx.sym.Group(list(mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("s"))))
    net.save(tmp_path / "net-symbol.json")
    assert (tmp_path / "net-ops.json").exists()
    for symbol in (net, mx.sym.load(tmp_path / "net-symbol.json")):
        data, s = np.arange(6, dtype="float32").reshape(3, 2), np.ones(2, "float32")
        arguments = {"data": mx.nd.array(data), "s": mx.nd.array(s)}
        grads = {"data": mx.nd.zeros((3, 2)), "s": mx.nd.zeros(2)}
        executor = symbol.bind(mx.cpu(), arguments, grads)
        inside = s + np.cumsum(data, 0)
        np.testing.assert_array_equal(executor.forward(is_train=True)[0].asnumpy(), inside**2)
        executor.backward([mx.nd.ones((3, 2)), mx.nd.zeros(2)])
        np.testing.assert_array_equal(grads["s"].asnumpy(), 2 * inside.sum(0))
        np.testing.assert_array_equal(grads["data"].asnumpy(), 2 * np.cumsum(inside[::-1], 0)[::-1])


def test_dropout_has_the_mask_of_the_step_in_backward() -> None:
    def body(x: Any, s: Any) -> Any:
        out = mx.sym.Dropout(x * s, p=0.5)
        return out, s + 0

    net = mx.sym.Group(list(mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("s"))))
    executor, grads = bound(net, {"data": np.ones((20, 30), "float32"), "s": np.ones(30, "float32")})
    executor.forward(is_train=True)
    mask = np.array(executor.outputs[0])
    assert set(np.unique(mask)) == {0, 2}
    assert not np.array_equal(mask[0], mask[1])
    executor.backward([np.ones((20, 30), "float32"), np.zeros(30, "float32")])
    np.testing.assert_array_equal(grads["data"], mask)
    executor.forward(is_train=False)
    assert np.all(executor.outputs[0] == 1)


def _normalised(x: Any, s: Any) -> Any:
    out = mx.sym.BatchNorm(x, fix_gamma=False, momentum=0.5, name="bn")
    return out, s + out


def test_states_of_a_body_are_the_nodes_states() -> None:
    net = mx.sym.Group(list(mx.sym.contrib.foreach(_normalised, mx.sym.var("data"), mx.sym.var("s"))))
    assert net.list_arguments() == ["data", "s", "bn_gamma", "bn_beta"]
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert load(net.tojson()).auxiliary_names == net.list_auxiliary_states()
    draw = np.random.RandomState(0)
    data = draw.normal(3, 2, (4, 8, 3)).astype("float32")
    arguments = {"data": data, "s": np.zeros((8, 3), "float32"), "bn_gamma": np.ones(3, "float32")}
    arguments |= {"bn_beta": np.zeros(3, "float32"), "bn_moving_mean": np.zeros(3, "float32")}
    arguments |= {"bn_moving_var": np.ones(3, "float32")}
    graph = load(net.tojson())
    aux = {name: CPU.put(arguments[name]) for name in graph.auxiliary_names}
    args = {name: CPU.put(arguments[name]) for name in graph.argument_names}
    grads = {name: CPU.put(np.zeros_like(value)) for name, value in args.items()}
    executor = bind(graph, args=args, grads=grads, aux=aux, backend=CPU, random=CPU.random(0))
    executor.forward(is_train=True)
    executor.backward([CPU.put(np.ones_like(output)) for output in executor.outputs])
    expected = np.zeros(3)
    for t in reversed(range(4)):  # backward brings them up to date, from the last step to the first
        expected = 0.5 * expected + 0.5 * data[t].mean(0)
    np.testing.assert_allclose(aux["bn_moving_mean"], expected, rtol=1e-5)
    normal = (data - data.mean(1, keepdims=True)) / np.sqrt(data.var(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(executor.outputs[0], normal, rtol=1e-4, atol=1e-5)


def test_a_recurrent_network_learns_with_module() -> None:
    """It tells the sign of a sequence's first number; the body's own weights are the module's."""
    draw = np.random.RandomState(0)
    labels = draw.randint(0, 2, 200).astype("float32")
    steps = draw.normal(0, 0.1, (200, 5, 2)).astype("float32")
    steps[:, 0, 0] += np.where(labels > 0, 1, -1)

    def body(x: Any, h: Any) -> Any:
        both = mx.sym.concat(x, h, dim=1)
        h = mx.sym.tanh(mx.sym.FullyConnected(both, num_hidden=8, name="cell"))
        return h, h

    data = mx.sym.transpose(mx.sym.var("data"), axes=(1, 0, 2))
    _, last = mx.sym.contrib.foreach(body, data, mx.sym.zeros((20, 8)))
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(last, num_hidden=2, name="out"), name="softmax")
    batches = mx.io.NDArrayIter(steps, labels, batch_size=20)
    module = mx.mod.Module(net, context=mx.cpu())
    module.fit(
        batches,
        num_epoch=8,
        optimizer_params={"learning_rate": 0.5},
        initializer=mx.init.Xavier(),
    )
    assert dict(module.score(batches, "acc"))["accuracy"] > 0.95
    assert set(module.get_params()[0]) == {"cell_weight", "cell_bias", "out_weight", "out_bias"}


def test_the_network_is_shown(capsys: Any) -> None:
    net = mx.sym.Group(list(mx.sym.contrib.foreach(_normalised, mx.sym.var("data"), mx.sym.var("s"))))
    mx.viz.print_summary(net, shape={"data": (4, 8, 3), "s": (8, 3)})
    printed = capsys.readouterr().out
    assert "(_foreach)" in printed
    assert "Op:_foreach" in net.debug_str()
    assert net.get_internals().list_outputs()[-2:] == net.list_outputs()


def test_arrays_go_through_python_loops() -> None:
    nd = mx.nd
    data, s = nd.array([[1, 2], [3, 4]]), nd.array([1, 1])
    (out, more), (last,) = nd.contrib.foreach(lambda x, states: ([x + states[0], x], [x * states[0]]), data, [s])
    np.testing.assert_array_equal(out.asnumpy(), [[2, 3], [4, 6]])
    np.testing.assert_array_equal(more.asnumpy(), data.asnumpy())
    np.testing.assert_array_equal(last.asnumpy(), [3, 8])
    squares, (i,) = nd.contrib.while_loop(lambda i: i < 3, lambda i: (i * i, [i + 1]), [nd.zeros(1)], max_iterations=5)
    np.testing.assert_array_equal(squares.asnumpy(), [[0], [1], [4], [0], [0]])
    assert i.asscalar() == 3
    assert nd.contrib.while_loop(lambda i: i < 0, lambda i: (i, i + 1), nd.zeros(1), 5)[0] == []
    a, b = nd.array([1]), nd.array([2])
    assert nd.contrib.cond(a < b, lambda: b, lambda: a).asscalar() == 2
    assert nd.contrib.cond(a > b, lambda: b, lambda: a).asscalar() == 1
