"""FeedForward: what the programs of tests/compat do not show: bad input, bucket keys, requests a step, its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx

pytestmark = pytest.mark.filterwarnings("ignore:FeedForward. mx.mod.Module:DeprecationWarning")


def network() -> mx.Symbol:
    data = mx.sym.Variable("data")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="softmax")


def samples(count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(0)
    x = rng.randn(count, 4).astype("float32")
    return x, x[:, :3].argmax(1).astype("float32")


def model(**options: Any) -> mx.model.FeedForward:
    return mx.model.FeedForward(network(), **{"num_epoch": 1, "numpy_batch_size": 5, **options})


X, Y = samples()


def doubled() -> mx.Symbol:
    data = mx.sym.Variable("data")
    return mx.sym.FullyConnected(mx.sym.FullyConnected(data, num_hidden=4, name="fc"), num_hidden=3, name="fc")


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: mx.model.FeedForward(3), AssertionError, "symbol: expected a Symbol or a function .* got 3"),
        (
            lambda: mx.model.FeedForward(doubled()),
            ValueError,
            "one argument of each name, got several called 'fc_weight'",
        ),
        (lambda: model().fit(X), ValueError, "y: expected an array of labels, as X is an array, got None"),
        (lambda: model().fit(X, [1, 2]), TypeError, r"y: expected an array of labels, got \[1, 2\]"),
        (lambda: model().fit(X, Y[:3]), ValueError, "a label for each of the 20 samples, got 3"),
        (lambda: model().fit(X, np.zeros((20, 2))), ValueError, r"expected shape \(20,\) or \(20, 1\), got \(20, 2\)"),
        (lambda: model().fit([1, 2], Y), TypeError, "X: expected a DataIter .* or an array"),
        (lambda: model().fit(X, Y, eval_data=3), TypeError, "eval_data: expected a DataIter or a pair"),
        (lambda: model().fit(X, Y, eval_data=(None, Y)), ValueError, "eval_data: expected samples as the first"),
        (lambda: model().fit(X, Y, work_load_list=[1, 2]), AssertionError, r"a number for each device \(1\), got 2"),
        (lambda: model().fit(X, Y, batch_end_callback=3), TypeError, "batch_end_callback: expected a function"),
        (lambda: model(num_epoch=None).fit(X, Y), TypeError, "num_epoch: expected a number of epochs, got None"),
        (
            lambda: model(epoch_size=3).fit(Empty(), Y),
            ValueError,
            "with batches, as epoch_size is 3, got one with none",
        ),
        (lambda: model().predict(X), RuntimeError, "the model has no parameters: call fit first"),
        (lambda: trained().predict(Empty()), ValueError, "predict: X: expected an iterator with batches"),
        (lambda: model(num_epoch=None).save("x"), AssertionError, "save: epoch: expected a number, got None"),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


class Empty(mx.io.DataIter):
    """An iterator without batches."""

    provide_data = [("data", (5, 4))]
    provide_label = [("softmax_label", (5,))]

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def reset(self) -> None:
        """Nothing to do."""


def trained(**options: Any) -> mx.model.FeedForward:
    fitted = model(**options)
    fitted.fit(X, Y)
    return fitted


def test_a_second_training_shows_in_predictions() -> None:
    fitted = trained(learning_rate=0.1)
    before = fitted.predict(X)
    fitted.fit(X, Y)
    assert np.abs(fitted.predict(X) - before).max() > 1e-3


def test_parameters_given_are_where_training_starts() -> None:
    weight = mx.nd.array(np.arange(12).reshape(3, 4) / 10)
    fitted = model(
        arg_params={"fc_weight": weight, "fc_bias": mx.nd.zeros((3,)), "other_weight": weight}, learning_rate=0.0
    )
    with pytest.raises(ValueError, match="other_weight"):
        fitted.predict(X)
    fitted = model(arg_params={"fc_weight": weight, "other_weight": weight}, allow_extra_params=True, learning_rate=0.0)
    assert list(fitted.arg_params) == ["fc_weight"]
    fitted.fit(X, Y)
    np.testing.assert_array_equal(fitted.arg_params["fc_weight"].asnumpy(), weight.asnumpy())


def test_labels_may_be_a_column_and_data_an_ndarray() -> None:
    fitted = model(learning_rate=0.5, num_epoch=8)
    fitted.fit(mx.nd.array(X), mx.nd.array(Y.reshape(20, 1)))
    assert fitted.score(mx.io.NDArrayIter(X, Y, 5)) > 0.5


def test_a_step_is_one_request() -> None:
    session = mx.current_context().session

    def requests(epochs: int) -> int:
        before = session.requests
        model(num_epoch=epochs, learning_rate=0.1).fit(mx.io.NDArrayIter(X, Y, 5))
        session.flush()
        return session.requests - before

    requests(1)
    # Per epoch: four steps; the metric is read by nobody, and the parameters come back after the last one only.
    assert requests(5) - requests(2) == 3 * 4


def by_length(length: int) -> mx.Symbol:
    """A network whose parameters are the same for every length."""
    data = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(mx.sym.sum(data, axis=1, keepdims=True), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net * (1.0 / length), name="softmax")


class Bucketed(mx.io.DataIter):
    """Batches of two lengths in turn."""

    default_bucket_key = 6
    provide_data = [("data", (5, 6))]
    provide_label = [("softmax_label", (5,))]

    def __iter__(self) -> Iterator[Any]:
        rng = np.random.RandomState(4)
        for length in (6, 2, 6, 3):
            data, label = rng.randn(5, length), rng.randint(0, 3, 5)
            yield mx.io.DataBatch(
                [mx.nd.array(data)],
                [mx.nd.array(label)],
                pad=0,
                bucket_key=length,
                provide_data=[("data", data.shape)],
                provide_label=[("softmax_label", label.shape)],
            )

    def reset(self) -> None:
        """Nothing to do: each pass draws the same batches."""


def test_a_function_of_bucket_keys_trains_one_set_of_parameters() -> None:
    start = {"fc_weight": mx.nd.ones((3, 1)), "fc_bias": mx.nd.zeros((3,))}
    fitted = mx.model.FeedForward(by_length, num_epoch=2, learning_rate=0.5, arg_params=start)
    fitted.fit(Bucketed())
    # The same steps by hand: out = softmax(w s / length + b / length), s the sum of a row.
    weight, bias = np.ones((3, 1)), np.zeros(3)
    for batch in [*Bucketed(), *Bucketed()]:
        sums = batch.data[0].asnumpy().sum(axis=1, keepdims=True)
        scores = (sums @ weight.T + bias) / batch.bucket_key
        grads = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        grads[np.arange(5), batch.label[0].asnumpy().astype(int)] -= 1
        grads *= 0.5 / 5 / batch.bucket_key
        weight, bias = weight - grads.T @ sums, bias - grads.sum(axis=0)
    # float32 against float64 over eight steps.
    np.testing.assert_allclose(fitted.arg_params["fc_weight"].asnumpy(), weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fitted.arg_params["fc_bias"].asnumpy(), bias, rtol=1e-5, atol=1e-6)


def test_the_log_tells_epochs_and_validation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        model().fit(X, Y, eval_data=(X, Y))
    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("Epoch[0] Time cost=") for message in messages)
    assert any(message.startswith("Epoch[0] Validation-accuracy=") for message in messages)


def test_a_new_one_warns_at_the_users_line() -> None:
    with pytest.warns(DeprecationWarning, match=r"FeedForward: mx\.mod\.Module") as warned:
        mx.model.FeedForward(network())
    assert warned[0].filename == __file__
