"""Operators with a variable number of inputs, whose names depend on a parameter."""

import pytest

import opbox as mx


def test_upsampling_names_its_weight() -> None:
    data = mx.sym.Variable("data")
    bilinear = mx.sym.UpSampling(data, scale=2, sample_type="bilinear", num_filter=3, name="up")
    assert bilinear.list_arguments() == ["data", "up_weight"]
    assert bilinear.attr_dict()["up_weight"]["__init__"] == '["bilinear", {}]'
    shapes, outs, _ = bilinear.infer_shape(data=(1, 3, 4, 5))
    assert shapes == [(1, 3, 4, 5), (3, 1, 4, 4)]
    assert outs == [(1, 3, 8, 10)]


def test_upsampling_counts_its_inputs() -> None:
    nearest = mx.sym.UpSampling(mx.sym.Variable("a"), mx.sym.Variable("b"), scale=2, sample_type="nearest")
    assert nearest.infer_shape(a=(1, 3, 4, 5), b=(1, 2, 8, 10))[1] == [(1, 5, 8, 10)]
    assert mx.sym.Crop(num_args=2, name="crop").list_arguments() == ["crop_arg0", "crop_arg1"]


@pytest.mark.usefixtures("engine")
def test_thousands_of_arrays_are_summed() -> None:
    """As MXNet sums them; by a formula that is as long."""
    arrays = [mx.nd.full((2,), i % 5) for i in range(3_000)]
    assert mx.nd.add_n(*arrays).asnumpy().tolist() == [6_000, 6_000]
