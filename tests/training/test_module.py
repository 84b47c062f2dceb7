"""Module: MXNet's results of whole trainings, and each method by itself."""

from __future__ import annotations

import logging
from collections import namedtuple

import numpy as np
import pytest

import opbox as mx
from tests.training.recorded import VALUES


def network():
    data = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(data, num_hidden=8, name="fc1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn")
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def samples():
    rng = np.random.RandomState(5)
    x = rng.randn(40, 6).astype("float32")
    y = (x[:, 0] > 0).astype("float32") + (x[:, 1] > 0)
    return x, y, rng


def parameters(net, rng):
    shapes = dict(zip(net.list_arguments(), net.infer_shape(data=(10, 6))[0], strict=True))
    names = sorted(name for name in shapes if name not in ("data", "softmax_label"))
    args = {name: mx.nd.array(rng.randn(*shapes[name]) * 0.3) for name in names}
    return args, {"bn_moving_mean": mx.nd.zeros((8,)), "bn_moving_var": mx.nd.ones((8,))}


OPTIMIZERS = {
    "sgd": lambda: ("sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.001}),
    "adam": lambda: ("adam", {"learning_rate": 0.02}),
    "scheduled": lambda: (
        "sgd",
        {"learning_rate": 0.2, "lr_scheduler": mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.2)},
    ),
}


@pytest.mark.parametrize("label", OPTIMIZERS)
def test_a_training_ends_where_mxnets_does(label):
    x, y, rng = samples()
    net = network()
    args, aux = parameters(net, rng)
    optimizer, params = OPTIMIZERS[label]()
    mod = mx.mod.Module(net)
    mod.fit(
        mx.io.NDArrayIter(x, y, 10),
        optimizer=optimizer,
        optimizer_params=params,
        arg_params=args,
        aux_params=aux,
        num_epoch=2,
    )
    expected = VALUES["fit"][label]
    for side, key in zip(mod.get_params(), ("args", "aux"), strict=True):
        assert set(side) == set(expected[key])
        for name, value in side.items():
            # The bias before a BatchNorm has no gradient but rounding, which Adam makes steps of; the mean follows it.
            loose = label == "adam" and name in ("fc1_bias", "bn_moving_mean")
            np.testing.assert_allclose(
                value.asnumpy(), expected[key][name], rtol=1e-3, atol=0.1 if loose else 2e-4, err_msg=name
            )
    score = mod.score(mx.io.NDArrayIter(x, y, 16), ["acc", "ce"])
    assert [name for name, _ in score] == [name for name, _ in expected["score"]]
    np.testing.assert_allclose([v for _, v in score], [v for _, v in expected["score"]], rtol=1e-3)
    predicted = mod.predict(mx.io.NDArrayIter(x, None, 16))
    assert list(predicted.shape) == expected["predicted_shape"]
    np.testing.assert_allclose(predicted.asnumpy()[:5], expected["predicted"], rtol=2e-3, atol=1e-4)


def bound(net=None, batch=4, **options):
    mod = mx.mod.Module(net or network(), **options)
    mod.bind([("data", (batch, 6))], [("softmax_label", (batch,))])
    mod.init_params(mx.init.Xavier())
    return mod


def batch_of(size=4, seed=0):
    rng = np.random.RandomState(seed)
    x, y = rng.randn(size, 6).astype("float32"), rng.randint(0, 3, size).astype("float32")
    return mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(y)])


def test_what_is_logged(caplog):
    caplog.set_level(logging.INFO)
    x, y, _ = samples()
    mod = mx.mod.Module(network())
    data = mx.io.NDArrayIter(x, y, 10)
    mod.fit(data, eval_data=data, num_epoch=1, batch_end_callback=mx.callback.Speedometer(10, 2))
    lines = [record.getMessage() for record in caplog.records if record.name == "root"]
    assert [line.split("\t")[0].split("=")[0] for line in lines] == [
        "Epoch[0] Batch [0-2]",
        "Epoch[0] Train-accuracy",
        "Epoch[0] Time cost",
        "Epoch[0] Validation-accuracy",
    ]


def test_callbacks_are_told_epoch_and_batch():
    x, y, _ = samples()
    seen = []
    mod = mx.mod.Module(network())
    data = mx.io.NDArrayIter(x, y, 10)
    mod.fit(
        data,
        eval_data=data,
        begin_epoch=3,
        num_epoch=5,
        batch_end_callback=lambda p: seen.append((p.epoch, p.nbatch)),
        epoch_end_callback=[lambda epoch, sym, arg, aux: seen.append((epoch, sorted(arg)[0]))],
        eval_batch_end_callback=lambda p: seen.append(("eval", p.nbatch)),
        eval_end_callback=lambda p: seen.append(("end", p.nbatch, p.eval_metric.name)),
    )
    first = [(3, 0), (3, 1), (3, 2), (3, 3), (3, "bn_beta")]
    assert seen[:5] == first
    assert seen[5:10] == [("eval", 0), ("eval", 1), ("eval", 2), ("eval", 3), ("end", 4, "accuracy")]
    assert len(seen) == 20


def test_gradients_add_up_and_are_null_where_asked():
    net = network()
    mod = mx.mod.Module(net, fixed_param_names=["fc1_weight"])
    mod.bind([("data", (4, 6))], [("softmax_label", (4,))], grad_req="add")
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(optimizer_params={"learning_rate": 0.5})
    before = mod.get_params()[0]
    mod.forward_backward(batch_of())
    once = mod._exec.grad_dict["fc2_weight"].asnumpy()
    mod.forward_backward(batch_of())
    np.testing.assert_allclose(mod._exec.grad_dict["fc2_weight"].asnumpy(), 2 * once, rtol=1e-4, atol=1e-6)
    mod.update()
    after = mod.get_params()[0]
    np.testing.assert_array_equal(after["fc1_weight"].asnumpy(), before["fc1_weight"].asnumpy())
    assert np.abs(after["fc2_weight"].asnumpy() - before["fc2_weight"].asnumpy()).max() > 0


def test_gradients_of_inputs_and_head_gradients():
    data = mx.sym.Variable("data")
    mod = mx.mod.Module(mx.sym.square(data), label_names=None)
    mod.bind([("data", (2, 3))], inputs_need_grad=True)
    mod.init_params()
    x = np.arange(6, dtype="float32").reshape(2, 3)
    mod.forward(mx.io.DataBatch([x]), is_train=True)
    mod.backward([mx.nd.ones((2, 3)) * 10])
    np.testing.assert_allclose(mod.get_outputs()[0].asnumpy(), x * x)
    [grad] = mod.get_input_grads()
    np.testing.assert_allclose(grad.asnumpy(), 20 * x)
    assert mod.output_shapes == [("square0_output", (2, 3))] or mod.output_shapes[0][1] == (2, 3)


def test_names_of_ones_own():
    net = mx.sym.FullyConnected(mx.sym.Variable("picture"), num_hidden=3, name="fc")
    net = mx.sym.SoftmaxOutput(net, label=mx.sym.Variable("kind"), name="softmax")
    mod = mx.mod.Module(net, data_names=("picture",), label_names=("kind",))
    x, y = np.random.rand(8, 5), np.zeros(8)
    mod.fit(mx.io.NDArrayIter({"picture": x}, {"kind": y}, 4), num_epoch=1)
    assert sorted(mod.get_params()[0]) == ["fc_bias", "fc_weight"]
    Batch = namedtuple("Batch", ["data"])
    mod.forward(Batch([x[:4]]), is_train=False)
    assert mod.get_outputs()[0].shape == (4, 3)


def test_a_label_name_that_is_missing_shows_in_the_initialization():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    net = mx.sym.SoftmaxOutput(net, label=mx.sym.Variable("new_label"), name="softmax")
    with pytest.warns(UserWarning, match="label_names"):
        mod = mx.mod.Module(net)
    data = mx.io.NDArrayIter(np.random.rand(8, 5), np.zeros(8), 4)
    mod.bind(data.provide_data, data.provide_label)
    with pytest.raises(
        ValueError, match=r"Module: 'new_label' is an input that nothing feeds.*label_names=\['new_label'\]"
    ):
        mod.init_params()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_names": ("pixels",)}, "data_names has 'pixels'"),
        ({"fixed_param_names": ("fc9_weight",)}, "fixed_param_names has 'fc9_weight'"),
    ],
)
def test_names_that_the_symbol_lacks(options, message):
    with pytest.raises(ValueError, match=message):
        mx.mod.Module(network(), **options)


def test_data_that_do_not_match_the_names():
    with pytest.raises(ValueError, match="expected the names of data_names, data, got pixels"):
        mx.mod.Module(network()).bind([("pixels", (4, 6))])


def test_a_label_among_the_parameters_says_what_to_do():
    mod = mx.mod.Module(network(), label_names=None)
    mod.bind(data_shapes=[("data", (4, 6))], for_training=False)
    shapes, _, _ = network().infer_shape(data=(4, 6))
    args = {name: mx.nd.zeros(shape) for name, shape in zip(network().list_arguments(), shapes, strict=True)}
    label = args.popitem()[0]
    args.pop("data")
    assert label.endswith("_label")
    remedy = f"{label} is not presented: it looks like the label: allow_missing=True leaves it out"
    with pytest.raises(RuntimeError, match=remedy):
        mod.set_params(args, {})
    mod.set_params(args, {}, allow_missing=True)


def test_parameters_given_missing_and_too_many():
    mod = bound()
    args, aux = mod.get_params()
    fewer = {name: value for name, value in args.items() if name != "fc1_bias"}
    remedy = "fc1_bias is not presented: add it to arg_params, or let allow_missing=True leave it to the initializer"
    with pytest.raises(RuntimeError, match=remedy):
        mod.set_params(fewer, aux)
    mod.set_params(fewer, aux, allow_missing=True)
    more = {**args, "extra_weight": mx.nd.zeros((2,))}
    with pytest.raises(ValueError, match="'extra_weight' is none of the arguments"):
        mod.set_params(more, aux, allow_missing=True)
    with pytest.warns(UserWarning, match="'extra_weight' is none of the arguments"):
        mod.set_params(more, aux)
    with pytest.raises(
        TypeError, match=r"set_params: arg_params: expected arrays by name for fc1_weight, .*, got None"
    ):
        mod.set_params(None, aux)
    mod.set_params(more, aux, allow_extra=True)
    with pytest.raises(ValueError, match=r"fc1_bias: expected a value of shape \(8,\), got \(3,\)"):
        mod.set_params({**args, "fc1_bias": mx.nd.zeros((3,))}, aux)
    with pytest.warns(UserWarning, match="init_params: the parameters are set already"):
        mod.init_params()
    mod.init_params(mx.init.One(), force_init=True)
    assert mod.get_params()[0]["fc1_weight"].asnumpy().min() == 1.0


def test_another_batch_size_reshapes_and_keeps_the_parameters():
    mod = bound()
    weight = mod.get_params()[0]["fc1_weight"].asnumpy()
    mod.forward(batch_of(7), is_train=False)
    assert mod.get_outputs()[0].shape == (7, 3)
    assert mod.data_shapes[0].shape == (7, 6)
    mod.forward(batch_of(4), is_train=False)
    first = mod.get_outputs()[0].asnumpy()
    np.testing.assert_array_equal(mod.get_params()[0]["fc1_weight"].asnumpy(), weight)
    mod.reshape([("data", (2, 6))], [("softmax_label", (2,))])
    mod.forward(mx.io.DataBatch([batch_of(4).data[0][0:2]]), is_train=False)
    np.testing.assert_allclose(mod.get_outputs()[0].asnumpy(), first[:2], rtol=1e-6)


def test_prediction_without_labels():
    x, _, _ = samples()
    mod = mx.mod.Module(network(), label_names=None)
    mod.bind([("data", (16, 6))], for_training=False)
    mod.set_params(*bound().get_params(), allow_missing=True)
    data = mx.io.NDArrayIter(x, batch_size=16)
    merged = mod.predict(data)
    assert merged.shape == (40, 3)
    apart = mod.predict(data, merge_batches=False)
    assert [[out.shape for out in outputs] for outputs in apart] == [[(16, 3)], [(16, 3)], [(8, 3)]]
    np.testing.assert_allclose(apart[2][0].asnumpy(), merged.asnumpy()[32:])
    assert len(mod.predict(data, always_output_list=True)) == 1
    assert mod.predict(data, num_batch=1).shape == (16, 3)
    sizes = [outputs[0].shape[0] for outputs, _, _ in mod.iter_predict(data)]
    assert sizes == [16, 16, 8]
    assert mod.predict(x[:16]).shape == (16, 3)
    with pytest.raises(ValueError, match="eval_data: expected a DataIter or an array, got 'text'"):
        mod.predict("text")


def test_checkpoints(tmp_path):
    x, y, _ = samples()
    prefix = str(tmp_path / "net")
    data = mx.io.NDArrayIter(x, y, 10)
    options = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.01}}
    mod = mx.mod.Module(network())
    mod.fit(data, num_epoch=1, **options)
    mod.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net-0001.params", "net-0001.states", "net-symbol.json"]
    again = mx.mod.Module.load(prefix, 1, load_optimizer_states=True)
    again.bind(data.provide_data, data.provide_label)
    again.init_optimizer(**options)
    for first, second in zip(mod.get_params(), again.get_params(), strict=True):
        for name, value in first.items():
            np.testing.assert_array_equal(value.asnumpy(), second[name].asnumpy())
    mean, other = mod._updater.states[0][0].asnumpy(), again._updater.states[0][0].asnumpy()
    np.testing.assert_array_equal(mean, other)
    assert np.abs(mean).max() > 0
    other = mx.mod.Module(network())
    other.bind(data.provide_data, data.provide_label)
    other.load_params(f"{prefix}-0001.params")
    assert other.score(data, "ce") == again.score(data, "ce")


def test_rebinding_keeps_what_was_trained():
    mod = bound()
    mod.init_optimizer(optimizer_params={"learning_rate": 0.5})
    mod.forward_backward(batch_of())
    mod.update()
    weight = mod.get_params()[0]["fc2_weight"].asnumpy()
    mod.forward_backward(batch_of())
    mod.update()
    trained = mod._exec.arg_dict["fc2_weight"].asnumpy()
    assert np.abs(weight - trained).max() > 0
    mod.bind([("data", (2, 6))], [("softmax_label", (2,))], force_rebind=True)
    np.testing.assert_array_equal(mod._exec.arg_dict["fc2_weight"].asnumpy(), trained)


def test_sharing_parameters_and_optimizer():
    mod = bound()
    mod.init_optimizer()
    other = mx.mod.Module(network())
    other.bind([("data", (2, 6))], [("softmax_label", (2,))], shared_module=mod)
    assert other.optimizer_initialized
    other.forward_backward(batch_of(2))
    other.update()
    np.testing.assert_array_equal(
        other._exec.arg_dict["fc1_weight"].asnumpy(), mod._exec.arg_dict["fc1_weight"].asnumpy()
    )


def test_states_between_batches():
    total = mx.sym.Variable("data") + mx.sym.Variable("memory")
    mod = mx.mod.Module(total, label_names=None, state_names=["memory"])
    mod.bind([("data", (2,))], for_training=False)
    mod.init_params()
    mod.set_states(value=5.0)
    mod.forward(mx.io.DataBatch([np.ones(2)]))
    assert mod.get_outputs()[0].asnumpy().tolist() == [6.0, 6.0]
    mod.set_states(states=mod.get_outputs())
    mod.forward(mx.io.DataBatch([np.ones(2)]))
    assert mod.get_outputs()[0].asnumpy().tolist() == [7.0, 7.0]


def test_a_monitor_sees_weights(caplog):
    caplog.set_level(logging.INFO)
    x, y, _ = samples()
    monitor = mx.monitor.Monitor(2, pattern="fc1_weight|softmax_output", sort=True)
    mx.mod.Module(network()).fit(mx.io.NDArrayIter(x, y, 10), num_epoch=1, monitor=monitor)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Batch:")]
    assert [line.split()[1:3] for line in lines][:2] == [["1", "fc1_weight"], ["1", "softmax_output"]]
    assert {line.split()[1] for line in lines} == {"1", "3"}


def test_a_monitor_sees_buckets_that_come_later():
    def network_for(length):
        data = mx.sym.Variable("data")
        net = mx.sym.FullyConnected(mx.sym.mean(data, axis=1, keepdims=True), num_hidden=2, name="fc")
        return mx.sym.SoftmaxOutput(net, name="softmax"), ["data"], ["softmax_label"]

    mod = mx.mod.BucketingModule(network_for, default_bucket_key=4)
    mod.bind([("data", (3, 4))], [("softmax_label", (3,))])
    mod.init_params()
    monitor = mx.mon.Monitor(1, pattern="fc_output")
    mod.install_monitor(monitor)
    monitor.tic()
    mod.switch_bucket(2, [("data", (3, 2))], [("softmax_label", (3,))])
    mod.forward(mx.io.DataBatch([mx.nd.ones((3, 2))], [mx.nd.zeros((3,))]), is_train=False)
    assert [name for _, name, _ in monitor.toc()] == ["fc_output"]


def test_what_needs_something_first():
    mod = mx.mod.Module(network())
    with pytest.raises(AssertionError, match="not bound yet"):
        mod.init_params()
    mod.bind([("data", (4, 6))], [("softmax_label", (4,))])
    with pytest.raises(AssertionError, match="no parameters yet"):
        mod.forward(batch_of())
    mod.init_params()
    with pytest.raises(AssertionError, match="no optimizer yet"):
        mod.update()
    with pytest.raises(AssertionError, match="inputs_need_grad=True"):
        mod.get_input_grads()
    with pytest.raises(AssertionError, match="num_epoch: expected a number of epochs, got None"):
        mod.fit(None)


def test_an_optimizer_made_outside():
    mod = bound()
    with pytest.warns(UserWarning, match="the mean over a batch would be"):
        mod.init_optimizer(optimizer=mx.optimizer.SGD(learning_rate=0.1))
    assert mod._optimizer.idx2name[0] == "fc1_weight"
    mod.init_optimizer(optimizer="adam", optimizer_params=(("learning_rate", 0.3),), force_init=True)
    assert mod._optimizer.rescale_grad == 0.25
    assert mod._optimizer.lr == 0.3
