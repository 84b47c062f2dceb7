"""Module: what a training step sends, and what buckets share."""

from __future__ import annotations

import numpy as np

import opbox as mx
from tests.training.test_module import bound


def test_buckets_share_what_they_learn():
    def unrolled(length):
        outputs, _ = mx.rnn.GRUCell(5).unroll(length, mx.sym.Variable("data"))
        net = mx.sym.FullyConnected(outputs[-1], num_hidden=2, name="fc")
        return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    def batch(length):
        shapes = [("data", (4, length, 3))], [("softmax_label", (4,))]
        data = [np.random.rand(*shape).astype("float32") for _, shape in shapes[0]]
        return mx.io.DataBatch(data, [np.zeros(4)], bucket_key=length, provide_data=shapes[0], provide_label=shapes[1])

    mod = mx.mod.BucketingModule(unrolled, default_bucket_key=4)
    mod.bind([("data", (4, 4, 3))], [("softmax_label", (4,))])
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(optimizer_params={"learning_rate": 0.5})
    metric, losses = mx.metric.create("ce"), []
    before = mod.get_params()[0]["gru_i2h_weight"].asnumpy()
    for length in (4, 2, 3) * 8:
        metric.reset()
        following = batch(length)
        mod.prepare(following)
        mod.forward_backward(following)
        mod.update()
        mod.update_metric(metric, following.label)
        losses.append(metric.get()[1])
        assert mod.data_shapes[0].shape == (4, length, 3)
    assert losses[-1] < losses[0] / 2
    assert np.abs(mod.get_params()[0]["gru_i2h_weight"].asnumpy() - before).max() > 0
    assert len(mod._buckets) == 3


def requests_of(steps, loop):
    """How many requests a loop sends beyond those of a loop without steps."""
    session = mx.current_context().session
    mod = bound()
    mod.init_optimizer(optimizer="adam")
    metric = mx.metric.create("acc")
    rng = np.random.RandomState(0)
    data = mx.io.NDArrayIter(rng.rand(4 * steps, 6), np.zeros(4 * steps), 4)
    mod.forward_backward(next(data))
    mod.update()
    mod.get_outputs()[0].wait_to_read()
    data.reset()
    before = session.requests
    loop(mod, data, metric)
    session.flush()
    return session.requests - before


def test_a_training_step_is_one_request():
    def by_hand(mod, data, metric):
        for batch in data:
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)

    def by_fit(mod, data, metric):
        metric.reset()
        mod._train_epoch(0, data, metric, mx.callback.Speedometer(4, 3), None)

    def by_score(mod, data, metric):
        mod.score(data, metric)

    for loop in (by_hand, by_fit, by_score):
        assert requests_of(12, loop) == 12


def test_a_step_waits_for_nobody():
    """The loop goes on while no answer comes at all."""
    mod, metric = bound(), mx.metric.create("acc")
    mod.init_optimizer()
    waited = []
    x, y = np.zeros((8, 6)), np.zeros(8)
    session = mx.current_context().session
    session.wait()
    real = session.fetch

    def watched(id):
        pending = real(id)
        result = pending.result

        class Watched:
            done = staticmethod(lambda: False)

            @staticmethod
            def result():
                waited.append(id)
                return result()

        return Watched()

    session.fetch = watched
    try:
        for batch in mx.io.NDArrayIter(x, y, 4):
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)
        assert waited == []
        metric.get()
        assert len(waited) == 2
    finally:
        del session.fetch
