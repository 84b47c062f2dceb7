"""Numpy mode for shapes, compared with what MXNet 1.9.1 gives for the same calls."""

from __future__ import annotations

import threading

import pytest

import opbox as mx


def net() -> mx.sym.Symbol:
    return mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=3, name="f")


def test_the_mode_is_a_threads_own_and_comes_back() -> None:
    assert not mx.util.is_np_shape()
    with mx.util.np_shape():
        assert mx.util.is_np_shape()
        with mx.util.np_shape(False):
            assert not mx.util.is_np_shape()
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(mx.util.is_np_shape()))
        thread.start()
        thread.join()
        assert seen == [False]
        assert mx.util.is_np_shape()
    assert not mx.util.is_np_shape()
    assert mx.util.set_np_shape(True) is False
    assert mx.util.set_np_shape(False) is True


def test_functions_and_classes_in_the_mode() -> None:
    @mx.util.use_np_shape
    def active() -> bool:
        return mx.util.is_np_shape()

    @mx.util.use_np_shape
    class Thing:
        def active(self) -> bool:
            return mx.util.is_np_shape()

    assert active()
    assert active.__name__ == "active"
    assert Thing().active()
    assert not mx.util.np_shape(False)(active.__wrapped__)()
    assert not mx.util.is_np_shape()


def test_zero_is_a_size_in_it_and_unknown_outside() -> None:
    double = mx.sym.Variable("x") * 2
    with mx.util.np_shape():
        assert net().infer_shape(x=(0, 4)) == ([(0, 4), (3, 4), (3,)], [(0, 3)], [])
        assert double.infer_shape_partial() == ([None], [None], [])
        assert double.infer_shape_partial(x=(-1, 3)) == ([(-1, 3)], [(-1, 3)], [])
        assert double.infer_shape(x=()) == ([()], [()], [])
    with pytest.warns(UserWarning, match="a dimension 0 is unknown"):
        assert net().infer_shape(x=(0, 4)) == (None, None, None)
    assert double.infer_shape_partial() == ([()], [()], [])
    assert double.infer_shape_partial(x=(0, 3)) == ([(0, 3)], [(0, 3)], [])


def test_an_empty_batch_is_bound_in_it() -> None:
    with mx.util.np_shape():
        executor = net().simple_bind(mx.cpu(), x=(0, 4))
        assert executor.forward()[0].shape == (0, 3)


def test_a_known_shape_is_taken_before_the_variables_own() -> None:
    double = mx.sym.Variable("x", shape=(2, 3)) * 2
    assert double.infer_shape(x=(4, 5)) == ([(4, 5)], [(4, 5)], [])
    assert double.infer_shape_partial(x=(0, 3)) == ([(2, 3)], [(2, 3)], [])
    assert double.infer_shape_partial(x=(0, 5)) == ([(2, 3)], [(2, 3)], [])
    assert double.simple_bind(mx.cpu(), x=(4, 5)).outputs[0].shape == (4, 5)
    assert double.bind(mx.cpu(), {"x": mx.nd.ones((4, 5))}).forward()[0].shape == (4, 5)
