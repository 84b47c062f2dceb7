"""CPU contexts of different numbers: arrays keep theirs, as in MXNet 1.9.1, and compute together on one device."""

from __future__ import annotations

import numpy as np

import opbox as mx
from opbox.device_sessions import sessions


def test_arrays_keep_the_number_of_their_context() -> None:
    assert mx.cpu(1) != mx.cpu(0)
    array = mx.nd.ones((2,), mx.cpu(1))
    results = [array, array.copy(), array * 2, array[0:1], array.reshape((1, 2)), mx.nd.sum(array), -array]
    assert [one.context for one in results] == [mx.cpu(1)] * len(results)
    assert repr(array).endswith("<NDArray 2 @cpu(1)>")
    with mx.cpu(3):
        arrays = [mx.nd.zeros((1,)), mx.nd.random.uniform(shape=(2,)), mx.nd.array([1]), mx.nd.arange(3)]
    assert [one.context for one in arrays] == [mx.cpu(3)] * len(arrays)
    assert mx.nd.array(array).context == mx.cpu(0)
    assert mx.nd.array(array, ctx=mx.cpu(2)).context == mx.cpu(2)


def test_copies_go_from_one_to_another_within_the_engine() -> None:
    first, second = mx.nd.ones((2,), mx.cpu(0)), mx.nd.zeros((2,), mx.cpu(1))
    mx.nd.waitall()
    before = mx.cpu().session.requests
    assert second.as_in_context(mx.cpu(1)) is second
    moved = second.as_in_context(mx.cpu(0))
    first.copyto(second)
    copied = first.copyto(mx.cpu(2))
    moved[:] = copied
    assert (second.context, moved.context, copied.context) == (mx.cpu(1), mx.cpu(0), mx.cpu(2))
    second[0:1] = moved[0:1] * 5
    assert mx.cpu().session.requests == before
    assert second.asnumpy().tolist() == [5, 1]
    assert first.asnumpy().tolist() == [1, 1]


def test_operators_take_arrays_of_several_as_mxnet_does() -> None:
    first, second = mx.nd.ones((2,), mx.cpu(0)), mx.nd.ones((2,), mx.cpu(1))
    assert (first + second).context == mx.cpu(0)
    assert mx.nd.concat(second, first, dim=0).context == mx.cpu(1)
    assert mx.nd.add_n(first, first, out=second).context == mx.cpu(1)
    assert second.asnumpy().tolist() == [2, 2]


def test_all_of_them_are_one_session() -> None:
    arrays = [mx.nd.ones((1,), mx.cpu(number)) for number in range(4)]
    assert len({array._session for array in arrays}) == 1
    assert mx.cpu(1).session is arrays[1]._session
    assert mx.cpu(1).session.of_context(0) is mx.cpu(0).session
    assert list(sessions()) == ["cpu"]
    mx.random.seed(3)
    executor = (mx.sym.Variable("x") * 2).simple_bind(mx.cpu(2), x=(2,))
    executor.forward(x=np.ones(2, np.float32))
    assert executor.outputs[0].context == executor.arg_dict["x"].context == mx.cpu(2)
    assert executor.outputs[0].asnumpy().tolist() == [2, 2]
