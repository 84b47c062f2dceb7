"""Packed weights stay from run to run, and never longer than the weight is as it was: every way to write to one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.cpu.computes import matmul
from opbox_ops.rnn.operator import sizes_of
from opbox_service.engine import Engine
from opbox_service.executor import BoundPlan, Watched, bind
from opbox_service.graph.json import load
from opbox_service.settings import Settings
from tests.contract.live import symbol, var
from tests.machine import has_avx512_core, has_onednn, has_vector_kernels, needs_matrix_unit
from tests.switches import switch_off

CPU = backend_for("cpu")
SHAPE = (16, 8, 3, 3)
CONVOLUTION = ("Convolution", "conv", {"kernel": "(3, 3)", "num_filter": "16", "no_bias": "True"}, [0, 1])
NET = symbol(var("data"), var("weight"), CONVOLUTION)
DATA, WEIGHT, NET_ID, OUT, OTHER, MORE = 1, 2, 3, 4, 5, 6
COMPILE = {"do": "compile", "id": MORE, "kernel": "twice", "signature": "float *x"}
COMPILE["source"] = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


class Wire:
    """A session with an executor for inference, whose weight has been packed by a run."""

    def __init__(self, engine: Engine, *before: dict[str, Any], **tensors: Any) -> None:
        self.engine = engine
        self.id = engine.call("POST", "/v1/sessions", {})[0]["id"]
        self.run({"do": "put", "id": DATA, "tensor": "data"}, data=values(1, 8, 10, 10))
        first = before or ({"do": "put", "id": WEIGHT, "tensor": "weight"},)
        tensors = tensors or {"weight": values(*SHAPE, seed=1)}
        bind = {"do": "bind", "id": NET_ID, "graph": NET, "args": {"data": DATA, "weight": WEIGHT}, "outputs": [OUT]}
        self.run(*first, bind, {"do": "forward", "executor": NET_ID}, **tensors)

    def run(self, *commands: dict[str, Any], **tensors: Any) -> dict[str, Any]:
        path = f"/v1/sessions/{self.id}/commands"
        return self.engine.call("POST", path, {"commands": list(commands)}, tensors)[1]

    def fetch(self, id: int) -> Any:
        return self.run({"do": "fetch", "id": id, "as": "array"})["array"]

    def forward(self) -> Any:
        self.run({"do": "forward", "executor": NET_ID})
        return self.fetch(OUT)

    def fresh(self) -> Any:
        """What the weight as it is now gives, by an executor that has packed nothing before."""
        args = {"data": np.array(self.fetch(DATA)), "weight": np.array(self.fetch(WEIGHT))}
        executor = bind(load(NET), args=args, backend=CPU, random=CPU.random(0))
        executor.forward()
        return executor.outputs[0]

    @property
    def weight(self) -> Any:
        """The weight's own memory, past all that notes who writes to it."""
        return self.engine.sessions._sessions[self.id].table._entries[WEIGHT].array


@pytest.fixture
def engine() -> Iterator[Engine]:
    started = Engine(Settings())
    yield started
    started.close()


@pytest.fixture
def wire(engine: Engine) -> Wire:
    return Wire(engine)


def read_only(wire: Wire) -> None:
    """What an evaluation does between two runs."""
    wire.run({"do": "write", "id": DATA, "tensor": "data"}, data=values(1, 8, 10, 10, seed=2))
    wire.run({"do": "describe", "id": WEIGHT}, {"do": "fetch", "id": WEIGHT, "as": "weight"})
    wire.run({"do": "copy", "from": WEIGHT, "to": OTHER}, {"do": "describe_executor", "id": NET_ID})
    attrs = {"axis": "1"}
    wire.run({"do": "invoke", "op": "sum", "attrs": attrs, "inputs": [OUT], "outputs": [MORE]})
    wire.run({"do": "free", "ids": [OTHER, MORE]})


def test_a_weight_that_nobody_writes_to_is_packed_once(wire: Wire) -> None:
    before = wire.forward()
    weight = wire.weight.copy()
    wire.weight[...] = 0
    np.testing.assert_array_equal(wire.forward(), before)
    wire.weight[...] = weight
    read_only(wire)
    expected = wire.fresh()
    wire.weight[...] = 0
    np.testing.assert_array_equal(wire.forward(), expected)
    wire.weight[...] = weight


def graph_with(**attrs: str) -> Any:
    names = ["data", "gamma", "beta", "moving_mean", "moving_var"]
    return symbol(*[var(name) for name in names], ("BatchNorm", "norm", attrs, [0, 1, 2, 3, 4]))


def through_batch_norm(wire: Wire, place: str, **attrs: str) -> None:
    """Run BatchNorm with the weight's first values in a place that it writes to."""
    wire.run(
        {"do": "view", "id": 10, "of": WEIGHT, "shape": [16 * 8 * 9]}, {"do": "view", "id": 11, "of": 10, "end": 8}
    )
    wire.run({"do": "zeros", "ids": [12, 13, 14, 15], "shape": [8], "dtype": "float32"})
    ids = {"gamma": 12, "beta": 13, "moving_mean": 14, "moving_var": 15, place: 11}
    args = {"data": DATA, "gamma": ids["gamma"], "beta": ids["beta"]}
    aux = {name: ids[name] for name in ("moving_mean", "moving_var")}
    wire.run({"do": "zeros", "ids": [17, 18], "shape": [1, 8, 10, 10], "dtype": "float32"})
    bound = {"do": "bind", "id": 16, "graph": graph_with(**attrs), "args": args, "aux": aux, "grads": {"data": 17}}
    wire.run(bound, {"do": "forward", "executor": 16, "is_train": True})
    wire.forward()
    # The statistics are moved by backward, gamma is set by forward.
    again = {"do": "forward", "executor": 16, "is_train": True}
    wire.run(again if place == "gamma" else {"do": "backward", "executor": 16, "head_grads": [18]})


def write(wire: Wire) -> None:
    wire.run({"do": "write", "id": WEIGHT, "tensor": "w"}, w=values(*SHAPE, seed=3))


def copy(wire: Wire) -> None:
    wire.run({"do": "put", "id": OTHER, "tensor": "w"}, w=values(*SHAPE, seed=3))
    wire.run({"do": "copy", "from": OTHER, "to": WEIGHT})


def invoke_into(wire: Wire) -> None:
    for _ in range(2):  # the second is recognised as one that recurs
        call = {"do": "invoke", "op": "_mul_scalar", "attrs": {"scalar": "2"}, "inputs": [WEIGHT], "outputs": [WEIGHT]}
        wire.run({**call, "into": True})
        expected = wire.fresh()
        np.testing.assert_array_equal(wire.forward(), expected)
    wire.run({**call, "into": True})


def state_of_an_update(wire: Wire) -> None:
    wire.run({"do": "zeros", "ids": [OTHER, MORE], "shape": list(SHAPE), "dtype": "float32"})
    call = {"do": "invoke", "op": "sgd_mom_update", "attrs": {"lr": "0.1", "momentum": "0.5"}}
    wire.run({**call, "inputs": [OTHER, MORE, WEIGHT], "outputs": [OTHER], "into": True})


def update(wire: Wire) -> None:
    wire.run({"do": "put", "id": OTHER, "tensor": "g"}, g=values(*SHAPE, seed=4))
    wire.run({"do": "update", "op": "sgd_update", "attrs": {"lr": "0.1"}, "calls": [{"inputs": [WEIGHT, OTHER]}]})


def rows(wire: Wire) -> None:
    wire.run({"do": "view", "id": OTHER, "of": WEIGHT, "begin": 3, "end": 5}, {"do": "forward", "executor": NET_ID})
    wire.run({"do": "write", "id": OTHER, "tensor": "w"}, w=values(2, *SHAPE[1:], seed=3))


def one_row_of_another_shape(wire: Wire) -> None:
    wire.run(
        {"do": "view", "id": OTHER, "of": WEIGHT, "shape": [1152]}, {"do": "view", "id": MORE, "of": OTHER, "at": 7}
    )
    wire.run({"do": "forward", "executor": NET_ID})
    wire.run(
        {
            "do": "invoke",
            "op": "_plus_scalar",
            "attrs": {"scalar": "1"},
            "inputs": [MORE],
            "outputs": [MORE],
            "into": True,
        }
    )


def gradient_of_another_executor(wire: Wire) -> None:
    square = symbol(var("x"), ("square", "square", {}, [0]))
    wire.run({"do": "put", "id": OTHER, "tensor": "x"}, x=values(*SHAPE, seed=5))
    bound = {"do": "bind", "id": MORE, "graph": square, "args": {"x": OTHER}, "grads": {"x": WEIGHT}, "outputs": [7]}
    wire.run(bound, {"do": "forward", "executor": MORE, "is_train": True}, {"do": "forward", "executor": NET_ID})
    wire.run({"do": "backward", "executor": MORE, "head_grads": [7]})


def output_that_is_an_argument(wire: Wire) -> None:
    both = symbol(var("w"), ("square", "square", {}, [0]), heads=[0, 1])
    wire.run({"do": "bind", "id": OTHER, "graph": both, "args": {"w": WEIGHT}, "outputs": [7, 8]})
    wire.run({"do": "forward", "executor": NET_ID})
    wire.run({"do": "write", "id": 7, "tensor": "w"}, w=values(*SHAPE, seed=3))


def output_of_another_executor(wire: Wire) -> None:
    """The weight is an output that another executor writes."""
    wire.run({"do": "write", "id": OTHER, "tensor": "x"}, x=values(*SHAPE, seed=6))
    wire.run({"do": "forward", "executor": MORE})


def kernel(wire: Wire) -> None:
    wire.run(COMPILE)
    wire.forward()
    wire.run({"do": "launch", "kernel": MORE, "args": [{"array": WEIGHT}], "grid": [1, 1, 1], "block": [64, 1, 1]})


def distrusted(wire: Wire) -> None:
    """A session that has brought code: any array may be written to at any time, and nobody need be told."""
    if shutil.which("g++") or shutil.which("c++") or shutil.which("clang++"):
        wire.run(COMPILE)
    else:
        wire.engine.sessions._sessions[wire.id].table.distrust()
    wire.forward()
    wire.weight[...] *= 2


def executor_that_goes_and_comes(wire: Wire) -> None:
    wire.run({"do": "free", "ids": [NET_ID, OUT]})
    wire.weight[...] = values(*SHAPE, seed=7)
    args = {"data": DATA, "weight": WEIGHT}
    wire.run({"do": "bind", "id": NET_ID, "graph": NET, "args": args, "outputs": [OUT]})


DOORS = [
    write,
    copy,
    invoke_into,
    state_of_an_update,
    update,
    rows,
    one_row_of_another_shape,
    gradient_of_another_executor,
    output_that_is_an_argument,
    pytest.param(kernel, marks=pytest.mark.compiler),
    distrusted,
    executor_that_goes_and_comes,
]


@pytest.mark.parametrize("door", DOORS)
def test_no_weight_is_stale(wire: Wire, door: Any) -> None:
    before = wire.forward()
    door(wire)
    after = wire.forward()
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, wire.fresh())


@pytest.mark.parametrize(
    ("place", "attrs"),
    [("moving_mean", {}), ("moving_var", {}), ("gamma", {"fix_gamma": "True"})],
    ids=["moving mean", "moving variance", "gamma"],
)
def test_states_of_other_executors_are_no_stale_weights(wire: Wire, place: str, attrs: dict[str, str]) -> None:
    before = wire.forward()
    through_batch_norm(wire, place, **attrs)
    after = wire.forward()
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, wire.fresh())


def test_an_output_that_another_executor_writes(engine: Engine) -> None:
    square = symbol(var("x"), ("square", "square", {}, [0]))
    makes = {"do": "bind", "id": MORE, "graph": square, "args": {"x": OTHER}, "outputs": [WEIGHT]}
    put = {"do": "put", "id": OTHER, "tensor": "x"}
    wire = Wire(engine, put, makes, {"do": "forward", "executor": MORE}, x=values(*SHAPE))
    before = wire.forward()
    output_of_another_executor(wire)
    after = wire.forward()
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, wire.fresh())


def test_a_weight_that_is_rows_of_a_larger_array(engine: Engine) -> None:
    put, view = {"do": "put", "id": OTHER, "tensor": "x"}, {"do": "view", "id": WEIGHT, "of": OTHER, "at": 1}
    wire = Wire(engine, put, view, x=values(3, *SHAPE))
    before = wire.forward()
    wire.run({"do": "write", "id": OTHER, "tensor": "x"}, x=values(3, *SHAPE, seed=8))
    after = wire.forward()
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, wire.fresh())


def test_an_executor_restored_from_a_checkpoint(tmp_path: Any) -> None:
    engine = Engine(Settings(state_dir=str(tmp_path)))
    try:
        wire = Wire(engine)
        wire.forward()
        wire.run({"do": "checkpoint", "name": "one", "arrays": {"weight": WEIGHT, "data": DATA}, "executors": [NET_ID]})
        wire.run({"do": "write", "id": WEIGHT, "tensor": "w"}, w=values(*SHAPE, seed=3))
        changed = wire.forward()
        wire.run({"do": "free", "ids": [DATA, WEIGHT, NET_ID, OUT]}, {"do": "restore", "name": "one"})
        after = wire.forward()
        assert not np.array_equal(after, changed)
        np.testing.assert_array_equal(after, wire.fresh())
    finally:
        engine.close()


class Passing(mx.operator.CustomOp):
    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("passing_beside_packed_weights")
class PassingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Passing()


def test_beside_a_users_operator_weights_are_packed_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    mx.connection.use(None)
    versions = []
    forward = BoundPlan.forward
    monkeypatch.setattr(
        BoundPlan, "forward", lambda self, **how: (versions.append(how["parameters"]), forward(self, **how))
    )
    x, weight = mx.nd.array(values(1, 8, 10, 10)), mx.nd.array(values(*SHAPE, seed=1))
    net = mx.sym.Convolution(mx.sym.var("x"), mx.sym.var("weight"), kernel=(3, 3), num_filter=16, no_bias=True)
    plain = net.bind(mx.cpu(), {"x": x, "weight": weight})
    plain.forward()[0].wait_to_read()
    assert versions.pop() is not None
    passing = mx.sym.Custom(net, op_type="passing_beside_packed_weights").bind(mx.cpu(), {"x": x, "weight": weight})
    for executor in (passing, plain):
        executor.forward()[0].wait_to_read()
        assert versions.pop() is None
    mx.connection.use(None)


def test_a_stateless_call_with_other_weights(engine: Engine) -> None:
    def forward(weight: Any) -> Any:
        return engine.call("POST", "/v1/forward", {"graph": NET}, {"data": values(1, 8, 10, 10), "weight": weight})[1]

    one, other = values(*SHAPE, seed=1), values(*SHAPE, seed=1)
    other[-1, -1, -1, -1] += 1
    first, again, changed, back = (forward(weight)["conv_output"] for weight in (one, one.copy(), other, one))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, back)
    np.testing.assert_array_equal(changed[:, :-1], first[:, :-1])
    assert not np.array_equal(changed[:, -1], first[:, -1])


def bound(grads: bool = False, **options: Any) -> Any:
    args = {"data": values(1, 8, 10, 10), "weight": values(*SHAPE)}
    gradients = {"weight": np.zeros(SHAPE, np.float32)} if grads else {}
    return bind(load(NET), args=args, grads=gradients, backend=CPU, random=CPU.random(0), **options)


def test_which_plans_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = bound()
    assert packing.memory.packed_bytes >= 4 * np.prod(SHAPE)
    assert bound(grads=True).memory.packed_bytes == packing.memory.packed_bytes
    assert not bound(level="reference").memory.packed_bytes
    least = packing.plan.allocates
    assert not bound(max_bytes=least).memory.packed_bytes, "a copy of the weights where there is hardly room"
    switch_off(monkeypatch, "packed-weights")
    assert not bound().memory.packed_bytes


def test_with_gradients_weights_are_packed_by_the_second_inference() -> None:
    executor = bound(grads=True)
    (weight,) = executor.packed
    before = weight.copy()
    executor.forward(parameters=1)
    first = executor.outputs[0].copy()
    weight[...] = 0
    executor.forward(parameters=1)  # packs what is there now, as the first inference may be the only one
    assert not executor.outputs[0].any()
    weight[...] = before
    executor.forward(parameters=1)
    assert not executor.outputs[0].any(), "says that nobody has written to the weight"
    executor.forward(is_train=True, parameters=1)
    np.testing.assert_array_equal(executor.outputs[0], first, "training packs in the arena")
    for _ in range(3):
        executor.forward(parameters=2)
        np.testing.assert_array_equal(executor.outputs[0], first)


def test_the_memory_of_gradients_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = bound(grads=True).memory.arena_bytes
    switch_off(monkeypatch, "packed-weights")
    assert bound(grads=True).memory.arena_bytes == beside


def test_a_run_without_a_number_packs_anew() -> None:
    executor = bound()
    (weight,) = executor.packed
    executor.forward(parameters=1)
    weight[...] = 0
    executor.forward()
    assert not executor.outputs[0].any()


def test_one_array_for_weight_and_data_is_not_packed() -> None:
    array = values(16, 16, 3, 3)
    graph = symbol(var("data"), var("weight"), (*CONVOLUTION[:3], [0, 1]))
    executor = bind(load(graph), args={"data": array[:1], "weight": array}, backend=CPU, random=CPU.random(0))
    assert not executor.packed


@pytest.mark.parametrize("relu", [False, True], ids=["alone", "relu"])
def test_weights_of_fully_connected(relu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are packed up to a size, and give the same bits."""
    if not level_of_products():
        pytest.skip("products are left to BLAS here")
    steps = [("FullyConnected", "fc", {"num_hidden": "200"}, [0, 1, 2])]
    graph = load(symbol(*map(var, ("data", "w", "b")), *steps, *([("relu", "out", {}, [3])] if relu else [])))
    args = {"data": values(32, 300), "w": values(200, 300, seed=1), "b": values(200, seed=2)}

    def executor() -> Any:
        return bind(graph, args=args, backend=CPU, random=CPU.random(0))

    packing = executor()
    assert packing.memory.packed_bytes >= 4 * 200 * 300
    packing.forward(parameters=1)
    first, weight = packing.outputs[0].copy(), args["w"].copy()
    args["w"][...] = 0
    packing.forward(parameters=1)
    np.testing.assert_array_equal(packing.outputs[0], first)
    args["w"][...] = weight
    monkeypatch.setattr(matmul, "MAX_PACKED_NUMBERS", 200 * 300 - 1)
    plain = executor()
    assert not plain.memory.packed_bytes
    plain.forward()
    np.testing.assert_array_equal(plain.outputs[0], first)


@needs_matrix_unit
@pytest.mark.parametrize("directions", [1, 2])
def test_weights_of_recurrent_layers(directions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix unit reads them packed, in each run to the same bits; biases are read as they lie."""
    attrs = {"mode": "gru", "state_size": "200", "num_layers": "2", "bidirectional": str(directions == 2)}
    op = registry.get("RNN")
    sizes = sizes_of(op.parse(attrs), (3, 40, 120))
    graph = load(symbol(*map(var, ("data", "parameters", "state")), ("RNN", "rnn", attrs, [0, 1, 2])))
    args = {"data": values(3, 40, 120), "parameters": values(sizes.parameters, seed=1) / 8}
    args["state"] = values(2 * directions, 40, 200, seed=2)

    def executor() -> Any:
        return bind(graph, args=args, backend=CPU, random=CPU.random(0))

    packing, weights = executor(), args["parameters"][: sizes.parameters - 2 * 2 * directions * 600]
    assert packing.memory.packed_bytes >= 4 * weights.size
    packing.forward(parameters=1)
    first, before = packing.outputs[0].copy(), weights.copy()
    weights[...] = 0
    packing.forward(parameters=1)
    np.testing.assert_array_equal(packing.outputs[0], first)
    packing.forward(parameters=2)
    assert np.abs(packing.outputs[0] - first).max() > 0.1
    weights[...] = before
    switch_off(monkeypatch, "packed-weights")
    plain = executor()
    assert not plain.memory.packed_bytes
    plain.forward(parameters=3)
    np.testing.assert_array_equal(plain.outputs[0], first)


def level_of_products() -> bool:
    return has_vector_kernels() or (has_onednn() and has_avx512_core())


def test_memory_that_is_watched() -> None:
    one, other = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
    watched = Watched([one[2:4]])
    for array, counts in [
        (one, True),
        (one[3:], True),
        (one[:, 1], True),
        (one.reshape(-1)[::-1], True),
        (one[:2], False),
        (one[4:], False),
        (other, False),
        (one[2:2], False),
    ]:
        before = watched.version
        watched.touch(array)
        assert (watched.version != before) == counts, array.shape
    watched.add(1, [one[1:3], other])
    assert watched.overlaps([one[1:2]])
    assert watched.discard(1)
    assert not watched.overlaps([one[1:2], other])
    assert not watched.discard(0)
