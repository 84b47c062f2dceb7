"""Numpy mode for shapes, compared with what MXNet 1.9.1 gives for the same calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def test_elements_have_no_dimensions_in_it(engine: str) -> None:
    array = mx.nd.array([[1, 2, 3], [4, 5, 6]])
    assert array[1, 2].shape == (1,)
    with mx.util.np_shape():
        assert array[1, 2].shape == array[1][2].shape == array[0, 0].shape == ()
        assert [element.shape for element in array[0]] == [(), (), ()]
        assert array[1, 2].asscalar() == 6
        array[1, 2] = 9
        array[0, 0] = mx.nd.array(8.0)
        assert (array[1, 2] * 2).asnumpy() == 18
    assert array.asnumpy().tolist() == [[8, 2, 3], [4, 5, 9]]


def test_arrays_without_dimensions_and_empty_ones_are_bound_and_saved(engine: str, tmp_path: Path) -> None:
    file = str(tmp_path / "arrays")
    with mx.util.np_shape():
        total = mx.sym.Variable("x") * 2
        assert total.bind(mx.cpu(), {"x": mx.nd.array(3.0)}).forward()[0].asnumpy() == 6
        assert total.bind(mx.cpu(), {"x": mx.nd.ones((0, 3))}).forward()[0].shape == (0, 3)
        mx.nd.save(file, {"number": mx.nd.array(3.0), "none": mx.nd.ones((0, 3)), "some": mx.nd.ones(2)})
        loaded = mx.nd.load(file)
    assert {name: array.shape for name, array in loaded.items()} == {"number": (), "none": (0, 3), "some": (2,)}
    # The third version of the format, for every array: MXNet reads no other in this mode.
    assert Path(file).read_bytes().count(bytes.fromhex("cafa93f9")) == 3


def test_unknown_sizes_of_a_file_stay_unknown_in_it() -> None:
    text = mx.sym.exp(mx.sym.Variable("x", shape=(0, 3))).tojson()
    with mx.util.np_shape():
        loaded = mx.sym.load_json(text)
        assert loaded.attr_dict()["x"] == {"__shape__": "(-1, 3)"}
        assert loaded.infer_shape_partial() == ([(-1, 3)], [(-1, 3)], [])


def test_the_mode_from_mx_and_for_shapes_alone() -> None:
    with mx.np_shape(True):
        assert mx.is_np_shape()
        assert not mx.is_np_array()
    mx.util.set_np(array=False)
    assert mx.is_np_shape()
    mx.util.reset_np()
    assert not mx.is_np_shape()

    @mx.use_np_shape
    class Thing:
        @property
        def active(self) -> bool:
            return mx.is_np_shape()

    assert Thing().active


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: mx.util.set_np(), mx.MXNetError, "opbox has no mx.np arrays: expected numpy mode for shapes alone"),
        (lambda: mx.util.use_np(print), mx.MXNetError, "use_np: opbox has no mx.np arrays"),
        (lambda: mx.util.np_array(), mx.MXNetError, "np_array: opbox has no mx.np arrays"),
        (lambda: mx.util.set_np(shape=False), ValueError, "expected shape=True with array=True, got shape=False"),
        (lambda: mx.util.set_np_shape("x"), TypeError, "active: expected True or False, got 'x'"),
        (lambda: mx.util.use_np_shape(3), TypeError, "expected a function or a class, got 3"),
        (lambda: mx.util.get_gpu_memory(0), mx.MXNetError, "expected a GPU of the engine's"),
        (lambda: mx.util.get_cuda_compute_capability(mx.cpu()), ValueError, r"expected a GPU such as mx.gpu\(0\)"),
        (lambda: mx.libinfo.find_lib_path(), RuntimeError, "opbox has no libmxnet library"),
        (lambda: mx.runtime.Features().is_enabled("NOPE"), RuntimeError, "feature 'NOPE': expected one of CUDA, "),
    ],
)
def test_what_is_refused(embedded: None, call: Callable[[], Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call()


def test_features(engine: str) -> None:
    features = mx.runtime.Features()
    assert len(features) == 32
    assert not features.is_enabled("cuda")
    assert features["LAPACK"].enabled
    assert repr(features["LAPACK"]) == "✔ LAPACK"
    assert mx.runtime.feature_list()[0] == ("CUDA", False)
    assert mx.util.get_gpu_count() == 0
    assert mx.libinfo.__version__ == "1.9.1"


def test_ufunc_wrappers() -> None:
    @mx.util.wrap_np_unary_func
    def same(x: Any, out: Any = None) -> Any:
        return x

    @mx.util.wrap_np_binary_func
    def first(x: Any, y: Any, out: Any = None) -> Any:
        return x

    assert same(1, where=True) == first(1, 2, order="K") == 1
    with pytest.raises(NotImplementedError, match="where: expected True, the only value here, got False"):
        same(1, where=False)
    with pytest.raises(TypeError, match="unknown argument 'foo': expected one of where, casting"):
        first(1, 2, foo=3)
    with pytest.raises(TypeError, match="dtype: expected None, got 'complex64'"):
        same(1, dtype="complex64")
    assert mx.util.set_module("mine")(same).__module__ == "mine"
