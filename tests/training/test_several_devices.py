"""A module on several contexts computes what MXNet 1.9.1 computes (several_devices.json), in one request a step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from tests.contract.live import TOKENS, Live
from tests.training import several_devices

RECORDED: dict[str, Any] = json.loads(Path(several_devices.RECORDED).read_text())
TWO = [mx.cpu(0), mx.cpu(1)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live("none", tmp_path_factory.mktemp("devices"))
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["embedded", "http"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    over_http = request.param == "http"
    connection.use(HttpTransport(request.getfixturevalue("live").url, TOKENS["ann"]) if over_http else None)
    yield request.param
    connection.use(None)


def check(row: dict[str, Any], recorded: dict[str, Any]) -> None:
    assert json.loads(json.dumps(row["texts"])) == recorded["texts"]
    assert row["numbers"].keys() == recorded["numbers"].keys()
    for name, values in recorded["numbers"].items():
        # Six steps in float32, whose sums are in another order: Adam divides by small roots of them.
        np.testing.assert_allclose(row["numbers"][name], values, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("case", several_devices.CASES)
def test_trainings_are_mxnets(case: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "1")  # put back afterwards
    check(several_devices.trained(mx, **several_devices.CASES[case]), RECORDED[case])


COMPRESSED = {
    "two": ([[0.00625, 0.1125, 0.21875], [0.29375, 0.3875, 0.48125]], {"context": TWO, "kvstore": "device"}),
    "one": ([[0.01875, 0.11875, 0.21875], [0.28125, 0.38125, 0.48125]], {"context": mx.cpu(), "kvstore": None}),
}
"""Weights after three steps, by MXNet 1.9.1: gradients are sums of thresholds, so that they agree to a rounding."""


@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_gradients_are_mxnets_in_one_request_a_step(case: str, engine: str) -> None:
    expected, options = COMPRESSED[case]
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="f"), name="softmax")
    mod = mx.mod.Module(net, context=options["context"], compression_params={"type": "2bit", "threshold": 0.25})
    mod.bind([("data", (4, 3))], [("softmax_label", (4,))])
    mod.init_params(arg_params={"f_weight": mx.nd.arange(6).reshape((2, 3)) / 10, "f_bias": mx.nd.zeros(2)})
    kvstore = options["kvstore"] or mx.kv.create("device")
    mod.init_optimizer(kvstore, "sgd", {"learning_rate": 0.1})
    batch = mx.io.DataBatch([mx.nd.arange(12).reshape((4, 3)) / 3], [mx.nd.array([0, 1, 0, 0])])
    requests = []
    for _ in range(3):
        before = mx.cpu().session.requests
        mod.forward_backward(batch)
        mod.update()
        mx.nd.waitall()
        requests.append(mx.cpu().session.requests - before)
    np.testing.assert_allclose(mod.get_params()[0]["f_weight"].asnumpy(), expected, rtol=1e-6)
    assert requests[1:] == [1, 1]


def test_compression_of_a_store_without_is_refused() -> None:
    mod = module(TWO, compression_params={"type": "2bit"})
    with pytest.raises(ValueError, match="expected a store of type 'device', got 'local'"):
        mod.init_optimizer("local")
    with pytest.raises(mx.MXNetError, match="type: expected '2bit', got '3bit'"):
        module(TWO, compression_params={"type": "3bit"}).init_optimizer("device")


def test_states_and_other_batch_axes_are_mxnets(engine: str) -> None:
    check(several_devices.with_states(mx), RECORDED["states"])


def module(context: Any, batch: int = 4, **options: Any) -> Any:
    mod = mx.mod.Module(several_devices.network(mx), context=context, **options)
    mod.bind([("data", (batch, 6))], [("softmax_label", (batch,))])
    mod.init_params(mx.init.Xavier())
    return mod


def test_a_step_is_one_request(engine: str) -> None:
    mod = module(TWO)
    mod.init_optimizer("device", "adam")
    metric = mx.metric.create("acc")
    data = mx.io.NDArrayIter(np.random.RandomState(0).rand(40, 6), np.zeros(40), 4)
    mod.forward_backward(next(data))
    mod.update()
    mod.get_outputs()[0].wait_to_read()
    session = mx.cpu().session
    before = session.requests
    for batch in data:
        mod.forward_backward(batch)
        mod.update()
        mod.update_metric(metric, batch.label)
        mod._flush()
    assert session.requests - before == 9


def test_a_step_of_a_chain_is_one_request(engine: str) -> None:
    first = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc1")
    last = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc2"), name="softmax"
    )
    chain = mx.mod.SequentialModule()
    chain.add(mx.mod.Module(first, label_names=[], context=TWO))
    chain.add(mx.mod.Module(last, context=TWO), take_labels=True, auto_wiring=True)
    counts: list[int] = []
    data = mx.io.NDArrayIter(np.random.RandomState(0).rand(24, 4), np.zeros(24), 4)

    def callback(param: Any) -> None:
        counts.append(mx.cpu().session.requests)

    chain.fit(data, num_epoch=1, eval_metric="ce", kvstore="device", batch_end_callback=callback)
    assert set(np.diff(counts[:-1])) == {1}


def test_head_gradients_are_sliced() -> None:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
    mod = mx.mod.Module(net, label_names=None, context=TWO)
    mod.bind([("data", (4, 3))], inputs_need_grad=True)
    mod.init_params(mx.init.One())
    heads = np.arange(8, dtype=np.float32).reshape(4, 2)
    mod.forward(mx.io.DataBatch([np.ones((4, 3))]), is_train=True)
    mod.backward([mx.nd.array(heads)])
    np.testing.assert_array_equal(mod.get_input_grads()[0].asnumpy(), np.repeat(heads.sum(1, keepdims=True), 3, 1))
    np.testing.assert_array_equal(mod.get_input_grads(False)[0][1].asnumpy(), [[9.0] * 3, [13.0] * 3])


def test_labels_of_each_device_may_come_sliced() -> None:
    mod = module(TWO)
    metric = mx.metric.create("acc")
    mod.forward(mx.io.DataBatch([np.ones((4, 6))], [np.zeros(4)]), is_train=False)
    mod.update_metric(metric, [[np.zeros(2)], [np.zeros(2)]], pre_sliced=True)
    assert metric.get()[1] in (0.0, 1.0)
    assert metric.num_inst == 4


def test_states_file_goes_back(tmp_path: Path) -> None:
    mod = module(TWO)
    mod.init_optimizer("local", "adam")
    batch = mx.io.DataBatch([np.ones((4, 6))], [np.zeros(4)])
    mod.forward_backward(batch)
    mod.update()
    mod.save_optimizer_states(str(tmp_path / "states"))
    states = {key: value[0].asnumpy() for key, value in mod._kvstore._updater.states.items()}
    assert "fc1_weight" in states
    mod.update()
    mod.load_optimizer_states(str(tmp_path / "states"))
    for key, value in mod._kvstore._updater.states.items():
        np.testing.assert_array_equal(value[0].asnumpy(), states[key])


def test_buckets_share_the_store() -> None:
    def unrolled(length: int) -> Any:
        outputs, _ = mx.rnn.GRUCell(5).unroll(length, mx.sym.Variable("data"))
        net = mx.sym.FullyConnected(outputs[-1], num_hidden=2, name="fc")
        return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    mod = mx.mod.BucketingModule(unrolled, default_bucket_key=4, context=TWO)
    mod.bind([("data", (4, 4, 3))], [("softmax_label", (4,))])
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(kvstore="device")
    for length in (2, 4, 2):
        shapes = [("data", (4, length, 3))], [("softmax_label", (4,))]
        data = [np.ones((4, length, 3), np.float32)]
        before = mod.get_params()[0]["gru_i2h_weight"].asnumpy()
        batch = mx.io.DataBatch(data, [np.ones(4)], None, None, length, *shapes)
        mod.forward_backward(batch)
        mod.update()
        assert np.abs(mod.get_params()[0]["gru_i2h_weight"].asnumpy() - before).max() > 0
    first, second = mod._curr_module._exec_group.param_arrays[0]
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())


def test_feed_forward_splits_too(engine: str) -> None:
    rng = np.random.RandomState(0)
    data, label = rng.rand(32, 6).astype("f"), rng.randint(0, 3, 32)
    scores = []
    for context in ([mx.cpu()], TWO):
        mx.random.seed(0)
        np.random.seed(0)
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
        with pytest.warns(DeprecationWarning, match="FeedForward"):
            model = mx.model.FeedForward(
                mx.sym.SoftmaxOutput(net, name="softmax"),
                ctx=context,
                num_epoch=2,
                initializer=mx.init.One(),
                numpy_batch_size=8,
                learning_rate=0.5,
            )
        model.fit(mx.io.NDArrayIter(data, label, 8), kvstore="device", work_load_list=[1, 3][: len(context)])
        scores.append(model.arg_params["fc_weight"].asnumpy())
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5, atol=1e-6)  # sums of a batch in another order


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(AssertionError, match=r"work_load_list: expected a number for each device \(2\), got 1$"):
        mx.mod.Module(several_devices.network(mx), context=TWO, work_load_list=[1])
    with pytest.raises(ValueError, match="expected a Context or a list of them, got an empty list"):
        mx.mod.Module(several_devices.network(mx), context=[])
    with pytest.raises(ValueError, match="batch: expected samples for each of 2 devices, got 1 with the work loads"):
        module(TWO, batch=1)
    mod = module(TWO)
    with pytest.raises(TypeError, match="kvstore: expected a KVStore, its name or None, got 3"):
        mod.init_optimizer(3)
    with pytest.raises(mx.MXNetError, match="dist_sync: expected a worker of several, got a program"):
        mod.init_optimizer("dist_sync")


def test_states_of_several_devices_are_not_one() -> None:
    with pytest.raises(AssertionError, match="get_states: expected merge_multi_context=False on 2 devices, got True"):
        module(TWO).get_states()


def test_mxnets_helpers_split_and_check() -> None:
    split = mx.executor_manager._split_input_slice
    assert split(10, [1, 1.5]) == [slice(0, 4), slice(4, 10)]
    assert split(7, [1, 2, 1]) == [slice(0, 2), slice(2, 6), slice(6, 7)]
    data = mx.sym.Variable("data")
    twice = mx.sym.FullyConnected(data, num_hidden=2, name="fc") + mx.sym.FullyConnected(data, num_hidden=2, name="fc")
    with pytest.raises(ValueError, match="expected one argument of each name, got several called 'fc_weight'"):
        mx.executor_manager._check_arguments(twice)


def test_names_that_programs_take_from_mxnets_modules() -> None:
    assert mx.module.base_module._as_list(3) == [3]
    assert mx.module.base_module._as_list((1, 2)) == (1, 2)
    (name, values), *others = mx.io._init_data([np.ones((2, 3)), np.zeros(2)], False, "data")
    assert (name, values.shape, values.dtype, len(others)) == ("_0_data", (2, 3), np.float32, 1)
    with pytest.raises(AssertionError, match="data: expected arrays, got None"):
        mx.io._init_data(None, False, "data")
    assert mx.base.py_str(b"fc1_weight") == "fc1_weight"
    mx.base.check_call(0)
    with pytest.raises(mx.MXNetError, match="check_call: expected 0, for success, got -1"):
        mx.base.check_call(-1)


def test_mxnets_functions_of_model_train(engine: str) -> None:
    params = {"w": mx.nd.ones((2,))}
    arrays = [[params["w"].copyto(context) for context in TWO]]
    gradients = [[mx.nd.ones((2,), context) * factor for context, factor in zip(TWO, (1, 3), strict=True)]]
    store, on_store = mx.model._create_kvstore("device", 2, params)
    assert on_store
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
    mx.model._initialize_kvstore(store, arrays, params, ["w"], on_store)
    mx.model._update_params_on_kvstore(arrays, gradients, store, ["w"])
    assert [array.asnumpy().tolist() for array in arrays[0]] == [[-1, -1], [-1, -1]]
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.5))
    mx.model._update_params(arrays, gradients, updater, 2)
    assert [array.asnumpy().tolist() for array in arrays[0]] == [[-1.5, -1.5], [-2.5, -2.5]]
    assert mx.model._create_kvstore("local", 1, params) == (None, False)


def test_the_group_of_executors_is_a_view() -> None:
    mod = module(TWO)
    group = mod._exec_group
    names = []
    group.install_monitor(mx.mon.Monitor(1, stat_func=lambda array: names.append(array.shape)))
    group.set_params({"fc2_bias": mx.nd.ones((3,))}, {}, allow_extra=True)
    assert mod.get_params()[0]["fc2_bias"].asnumpy().tolist() == [1, 1, 1]
    group.execs[1].arg_dict["fc2_bias"][:] = 3
    mod._exec_group.forward(mx.io.DataBatch([np.ones((4, 6))], [np.zeros(4)]))
    group.backward()
    assert [array.shape for array in group.get_outputs(False)[0]] == [(2, 3), (2, 3)]
    assert group.get_output_shapes() == [("softmax_output", (4, 3))]
    assert len(group.grad_arrays) == len(group.param_names) == 5
    mod._sync_params_from_devices()
    assert mod.get_params()[0]["fc2_bias"].asnumpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize("chained", [False, True])
def test_contexts_agree_after_an_epoch_without_a_store(chained: bool, engine: str) -> None:
    inner = mx.mod.Module(several_devices.network(mx), context=TWO)
    mod: Any = inner
    if chained:
        mod = mx.mod.SequentialModule()
        mod.add(inner, take_labels=True)
    rng = np.random.RandomState(0)
    batches = mx.io.NDArrayIter(rng.rand(8, 6).astype("f"), rng.randint(0, 3, 8).astype("f"), 4)
    mod.fit(batches, num_epoch=1, kvstore=None, initializer=mx.init.Xavier(), optimizer_params={"learning_rate": 0.5})
    for arrays in [*inner._exec_group.param_arrays, *inner._exec_group.aux_arrays]:
        np.testing.assert_array_equal(arrays[0].asnumpy(), arrays[1].asnumpy())
