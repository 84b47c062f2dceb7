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


def test_zero_in_parameters_and_variables_is_a_size_in_it_and_unknown_outside() -> None:
    y = mx.sym.Variable("y")
    makers = (
        mx.sym.zeros,
        mx.sym.ones,
        lambda shape: mx.sym.full(shape, 2),
        lambda shape: mx.sym.random.uniform(shape=shape),
        lambda shape: mx.sym.random.randint(0, 5, shape=shape),
    )
    for maker in makers:
        assert maker((0, 5)).infer_shape_partial() == ([], [(0, 5)], [])
        assert (maker((0, 5)) + y).infer_shape(y=(3, 5)) == ([(3, 5)], [(3, 5)], [])
        assert maker(()).infer_shape_partial() == ([], [()], [])
        with mx.util.np_shape():
            assert maker((0, 5)).infer_shape() == ([], [(0, 5)], [])
            assert maker(()).infer_shape() == ([], [()], [])
            assert maker((-1, 5)).infer_shape_partial() == ([], [(-1, 5)], [])
            assert (maker((-1, 5)) + y).infer_shape(y=(3, 5)) == ([(3, 5)], [(3, 5)], [])
            with pytest.raises(mx.MXNetError, match=r"expected \(.*5\), got"):
                (maker((0, 5)) + y).infer_shape(y=(3, 5))
    double = mx.sym.Variable("x", shape=(0, 5)) * 2
    assert double.infer_shape_partial() == ([(0, 5)], [(0, 5)], [])
    assert (double + y).infer_shape(y=(3, 5)) == ([(3, 5), (3, 5)], [(3, 5)], [])
    with mx.util.np_shape():
        assert double.infer_shape() == ([(0, 5)], [(0, 5)], [])
        assert double.infer_shape(x=(4, 5)) == ([(4, 5)], [(4, 5)], [])


def test_arrays_made_by_operators_may_be_empty_in_it() -> None:
    with mx.util.np_shape():
        assert mx.nd.random.uniform(shape=(0, 5)).asnumpy().shape == (0, 5)
        assert mx.nd.random.normal(shape=()).asnumpy().shape == ()
        assert mx.nd._internal._zeros(shape=(2, 0)).shape == (2, 0)
    with pytest.raises(mx.MXNetError, match="stay unknown"):
        mx.nd.random.uniform(shape=(0, 5)).asnumpy()
    with pytest.raises(mx.MXNetError, match="expected sizes of 0 or more, got"):
        mx.nd.ones((-1, 5))


def test_files_say_that_they_were_written_in_it() -> None:
    symbol = mx.sym.zeros((0, 5)) + mx.sym.Variable("y", shape=(0, 5))
    with mx.util.np_shape():
        text = symbol.tojson()
        assert mx.sym.load_json(text).tojson() == text
        assert mx.sym.load_json(text).infer_shape() == ([(0, 5)], [(0, 5)], [])
    lines = ['  "attrs": {', '    "is_np_shape": ["int", 1], ', '    "mxnet_version": ["int", 10901]', "  }", "}"]
    assert text.splitlines()[-5:] == lines
    assert mx.sym.load_json(text).infer_shape_partial() == ([(0, 5)], [(0, 5)], [])
    assert mx.sym.load_json(text).infer_shape(y=(2, 5)) == ([(2, 5)], [(2, 5)], [])
    assert "is_np_shape" not in mx.sym.load_json(text).tojson()


def test_slopes_of_prelu_may_be_known_in_part() -> None:
    symbol = mx.sym.LeakyReLU(mx.sym.Variable("x"), mx.sym.Variable("g"), act_type="prelu")
    assert symbol.infer_shape_partial(x=(3, 4), g=(0, 4)) == ([(3, 4), (0, 4)], [(3, 4)], [])
