"""Metrics against MXNet's values, local and global counts, and updates held back until a metric is read."""

from __future__ import annotations

import math

import numpy as np
import pytest

import opbox as mx
from opbox.io.host_array import HostArray
from tests.training.recorded import VALUES, inputs


@pytest.mark.parametrize("row", VALUES["metrics"], ids=lambda row: f"{row['name']}{row['options'] or ''}")
def test_values_are_mxnets(row):
    metric = mx.metric.create(row["name"], **row["options"])
    label, pred = row["inputs"]
    for number, (batch, expected) in enumerate(zip(inputs().metric_inputs(), row["steps"], strict=True)):
        labels = batch[4].reshape(8, 1) if row["name"] == "pearsonr" else batch[label]
        metric.update([labels], [batch[pred]])
        for got, wanted in zip([metric.get_name_value(), metric.get_global_name_value()], expected, strict=True):
            assert [name for name, _ in got] == [name for name, _ in wanted]
            if row["options"].get("average") == "micro" and row["name"] == "pearsonr" and got is not None:
                wanted = expected[0]  # MXNet's global value of this one is always 0
            np.testing.assert_allclose([v for _, v in got], [v for _, v in wanted], rtol=2e-6)
        if number == 1:
            metric.reset_local()


def test_arrays_of_the_device_are_taken_too():
    metric = mx.metric.create("acc")
    metric.update([mx.nd.array([0, 1])], [mx.nd.array([[0.9, 0.1], [0.8, 0.2]])])
    assert metric.get() == ("accuracy", 0.5)


def test_a_metric_without_batches_is_nan():
    assert math.isnan(mx.metric.Accuracy().get()[1])
    assert str(mx.metric.Accuracy()) == "EvalMetric: {'accuracy': nan}"


def test_composites_and_functions():
    def distance(label, pred):
        return float(np.abs(label - pred.argmax(axis=1)).sum()), len(label)

    metric = mx.metric.create(["acc", "ce", distance, mx.metric.TopKAccuracy(2)])
    metric.update([np.array([1.0, 0.0])], [np.array([[0.2, 0.5, 0.3], [0.1, 0.2, 0.7]], np.float32)])
    names, values = metric.get()
    assert names == ["accuracy", "cross-entropy", "distance", "top_k_accuracy_2"]
    np.testing.assert_allclose(values, [0.5, -(math.log(0.5) + math.log(0.1)) / 2, 1.0, 0.5], rtol=1e-6)
    assert mx.metric.np(lambda label, pred: 1.0).get()[0] == "custom(<lambda>)"
    with pytest.raises(ValueError, match="expected an index below 4, got 9"):
        metric.get_metric(9)
    with pytest.raises(NotImplementedError, match="has no configuration"):
        metric.get_config()


def test_outputs_and_labels_are_chosen_by_name():
    metric = mx.metric.Loss(output_names=["loss_output"], label_names=[])
    metric.update_dict({"label": np.zeros(2)}, {"pred_output": np.ones(2), "loss_output": np.array([1.0, 3.0])})
    assert metric.get() == ("loss", 2.0)


def test_config_makes_an_equal_metric():
    config = mx.metric.TopKAccuracy(top_k=3).get_config()
    assert config == {
        "metric": "TopKAccuracy",
        "top_k": 3,
        "name": "top_k_accuracy_3",
        "output_names": None,
        "label_names": None,
    }
    assert mx.metric.create("ce").get()[0] == "cross-entropy"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mx.metric.TopKAccuracy(1), "top_k: expected 2 or more, got 1"),
        (lambda: mx.metric.create("no such"), "expected one of acc, accuracy"),
        (lambda: mx.metric.create(3), "expected a name"),
    ],
)
def test_what_makes_no_metric(make, message):
    with pytest.raises(AssertionError, match=message):
        make()


def test_numbers_that_do_not_fit():
    with pytest.raises(ValueError, match="as many predictions as labels, 2, got 1"):
        mx.metric.Accuracy().update([np.zeros(3), np.zeros(3)], [np.zeros((3, 2))])
    with pytest.raises(ValueError, match="expected labels of two classes, got 3"):
        mx.metric.F1().update([np.array([0, 1, 2])], [np.zeros((3, 2), np.float32)])


class Arriving:
    """A value under way, that says when it was waited for."""

    def __init__(self, value):
        self.value, self.here, self.waited = np.asarray(value, np.float32), False, False

    def done(self):
        return self.here

    def result(self):
        self.waited = self.waited or not self.here
        self.here = True
        return self.value


def scores(*classes):
    return Arriving(np.eye(3)[list(classes)])


def test_updates_wait_until_the_metric_is_read():
    metric = mx.metric.create(["acc", "ce"])
    first, second = scores(0, 1), scores(2, 2)
    metric.update_later({"l": HostArray(np.array([0.0, 1.0]))}, {"p": first})
    metric.update_later({"l": HostArray(np.array([2.0, 0.0]))}, {"p": second})
    assert not first.here
    assert not second.here
    assert metric.get()[1][0] == 0.75
    assert first.waited
    assert second.waited


def test_what_has_arrived_is_taken_in_without_being_asked():
    metric = mx.metric.Accuracy()
    first, second = scores(0), scores(1)
    metric.update_later({"l": HostArray(np.array([0.0]))}, {"p": first})
    first.here = True
    metric.update_later({"l": HostArray(np.array([0.0]))}, {"p": second})
    assert len(metric._pending) == 1
    assert not second.waited
    assert metric.get_global() == ("accuracy", 0.5)


def test_a_reset_forgets_updates_held_back_and_keeps_the_global_count():
    metric = mx.metric.F1(average="micro")
    metric.update_later({"l": HostArray(np.array([1.0, 0.0]))}, {"p": scores(1, 0)})
    metric.reset_local()
    assert math.isnan(metric.get()[1])
    assert metric.get_global() == ("f1", 1.0)
    metric.update_later({"l": HostArray(np.array([1.0, 0.0]))}, {"p": scores(0, 0)})
    metric.reset()
    assert math.isnan(metric.get_global()[1])


def test_ones_own_metric_is_updated_at_once():
    class Mine(mx.metric.EvalMetric):
        def __init__(self):
            super().__init__("mine")

        def update(self, labels, preds):
            self.seen = preds[0].asnumpy().sum()
            self.sum_metric += float(self.seen)
            self.num_inst += 1

    metric, value = Mine(), scores(1, 2)
    metric.update_later({"l": HostArray(np.zeros(2))}, {"p": value})
    assert value.waited
    assert metric.seen == 2
    assert metric.get() == ("mine", 2.0)


def test_an_error_in_an_update_held_back_comes_out_once():
    metric = mx.metric.Accuracy()
    metric.update_later({"l": HostArray(np.zeros(5))}, {"p": scores(0, 1)})
    with pytest.raises(ValueError, match="as many predictions as labels"):
        metric.get()
    assert math.isnan(metric.get()[1])
