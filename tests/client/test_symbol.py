"""Symbols: composition, attributes, indexing, and what is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import MXNetError, ParamError, UnknownOperatorError


def mlp() -> mx.Symbol:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1")
    return mx.sym.SoftmaxOutput(mx.sym.Activation(net, act_type="relu", name="relu1"), name="softmax")


def test_unknown_parameter_has_the_nearest_names_and_the_node() -> None:
    with pytest.raises(
        ParamError, match=r"fc9 \(FullyConnected\): unknown parameter 'num_hiden'; did you mean num_hidden"
    ):
        mx.sym.FullyConnected(mx.sym.Variable("x"), num_hiden=3, name="fc9")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "parameter 'num_hidden' is required: an integer of at least 1"),
        ({"num_hidden": "many"}, "parameter 'num_hidden': expected an integer of at least 1, got 'many'"),
        ({"num_hidden": 0}, "expected an integer of at least 1, got '0'"),
        ({"num_hidden": 3, "no_bias": "maybe"}, "parameter 'no_bias': expected True or False, got 'maybe'"),
        ({"num_hidden": 3, "wight": mx.sym.Variable("w")}, "unknown input 'wight'"),
    ],
)
def test_unfit_parameters_are_refused_where_they_are_written(params: dict, message: str) -> None:
    with pytest.raises(ParamError) as caught:
        mx.sym.FullyConnected(mx.sym.Variable("x"), **params)
    assert message in str(caught.value)
    assert isinstance(caught.value, MXNetError)


def test_choices_are_told() -> None:
    with pytest.raises(ParamError, match="expected one of 'relu', 'sigmoid'"):
        mx.sym.Activation(mx.sym.Variable("x"), act_type="rleu")


def test_several_outputs_are_no_single_input() -> None:
    parts = mx.sym.SliceChannel(mx.sym.Variable("x"), num_outputs=2, name="parts")
    with pytest.raises(MXNetError, match="expected a symbol with one output, got a tuple of 2"):
        mx.sym.FullyConnected(parts, num_hidden=3)


def test_too_many_inputs() -> None:
    a = mx.sym.Variable("a")
    with pytest.raises(TypeError, match="must be a Symbol"):
        mx.sym.Activation(3, act_type="relu")
    with pytest.raises(TypeError, match="expected Symbols by position"):
        mx.sym.Concat(a, 3)


def test_output_by_name_position_and_slice() -> None:
    inside = mlp().get_internals()
    assert inside["fc1_output"].name == "fc1"
    assert inside[0].name == "data"
    assert inside[1:3].list_outputs() == ["fc1_weight", "fc1_bias"]
    assert [output.name for output in inside][-1] == "softmax"
    assert len(inside) == 7
    with pytest.raises(ValueError, match="output 'fc2_output': expected one of data"):
        inside["fc2_output"]
    with pytest.raises(IndexError):
        inside[7]
    with pytest.raises(IndexError):
        inside[-1]
    with pytest.raises(TypeError):
        inside[1.5]  # type: ignore[index]  # the error that is tested


def test_attributes_are_set_and_checked() -> None:
    net = mlp()
    net._set_attr(lr_mult="3")
    assert net.attr("__lr_mult__") == net.attr("lr_mult") == "3"
    assert net.attr("name") == "softmax"
    assert net.attr("none") is None
    with pytest.raises(ParamError, match="unknown parameter 'nonsense'"):
        net._set_attr(nonsense="1")
    with pytest.raises(ValueError, match="expected a string, got int"):
        net._set_attr(__x__=1)
    with pytest.raises(ValueError, match="AttrScope: attribute 'x': expected a string"):
        mx.AttrScope(x=1)  # type: ignore[arg-type]  # the error that is tested


def test_copies_do_not_share_attributes() -> None:
    net = mlp()
    other = copy.deepcopy(net)
    other._set_attr(__q__="1")
    assert net.attr("__q__") is None


def test_composition_leaves_the_original() -> None:
    net = mlp()
    other = net(data=mx.sym.Variable("images"), name="again")
    assert other.list_arguments()[0] == "images"
    assert net.list_arguments()[0] == "data"
    assert (other.name, net.name) == ("again", "softmax")
    with pytest.raises(MXNetError, match="argument 'pictures' not found: expected one of data"):
        net(pictures=mx.sym.Variable("x"))
    with pytest.raises(TypeError):
        net(data=3)


def test_what_symbols_cannot_do() -> None:
    a = mx.sym.Variable("a")
    for attempt in (lambda: bool(a), lambda: a.asnumpy(), lambda: a.__iadd__(1), lambda: a.copy()):
        with pytest.raises(MXNetError, match="expected an NDArray, got a Symbol"):
            attempt()
    with pytest.raises(TypeError, match="not supported"):
        a + "x"
    with pytest.raises(TypeError):
        mx.sym.Group([])
    with pytest.raises(TypeError, match="string"):
        mx.sym.Variable(3)  # type: ignore[arg-type]  # the error that is tested
    with pytest.raises(ValueError, match="double underscores"):
        mx.sym.Variable("x", shade="blue")


def test_save_and_load(tmp_path: Path) -> None:
    net = mlp()
    net.save(tmp_path / "net.json")
    assert mx.sym.load(str(tmp_path / "net.json")).tojson() == net.tojson()


def test_lines_go_to_the_engine_not_to_files() -> None:
    net = mlp()
    assert "__source__" not in net.tojson()
    lines = [node["attrs"]["__source__"] for node in net._document()["nodes"]]
    assert all(line.startswith("test_symbol.py:") for line in lines)
    again = pickle.loads(pickle.dumps(net))
    assert again.tojson() == net.tojson()
    assert again._document() == net._document()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"nodes": [], "heads": []}', '{"nodes": 3, "heads": [[0,0,0]]}'])
def test_what_is_no_graph(text: str) -> None:
    with pytest.raises(MXNetError, match="symbol JSON"):
        mx.sym.load_json(text)


def test_unknown_operators_in_files() -> None:
    text = mlp().tojson().replace('"FullyConnected"', '"FulyConnected"')
    with pytest.raises(UnknownOperatorError, match="did you mean FullyConnected"):
        mx.sym.load_json(text)


def test_files_of_version_0_8() -> None:
    old = """{"nodes": [
        {"op": "null", "param": {}, "name": "data", "inputs": [], "backward_source_id": -1},
        {"op": "null", "param": {}, "name": "bn_gamma", "inputs": [], "backward_source_id": -1,
         "attr": {"lr_mult": "0.1"}},
        {"op": "null", "param": {}, "name": "bn_beta", "inputs": [], "backward_source_id": -1},
        {"op": "BatchNorm", "param": {"eps": "0.001", "momentum": "0.9", "fix_gamma": "True"}, "name": "bn",
         "inputs": [[0, 0], [1, 0], [2, 0]], "backward_source_id": -1,
         "attr": {"beta_wd_mult": "0", "ctx_group": "a"}}],
        "arg_nodes": [0, 1, 2], "heads": [[3, 0]]}"""
    net = mx.sym.load_json(old)
    assert net.list_arguments() == ["data", "bn_gamma", "bn_beta"]
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    attrs = net.attr_dict()
    assert attrs["bn_gamma"]["__lr_mult__"] == "0.1"
    assert attrs["bn_beta"]["__wd_mult__"] == "0"
    assert attrs["bn_moving_var"]["__init__"] == '["one", {}]'
    assert attrs["bn_moving_mean"]["__ctx_group__"] == attrs["bn"]["__ctx_group__"] == "a"


def test_the_type_of_a_variable_gives_way_to_its_array(engine: str) -> None:
    half = mx.sym.load_json(mx.sym.exp(mx.sym.Variable("x", dtype="float16")).tojson())
    assert half.infer_type()[1] == [np.float16]
    assert half.infer_type(x="float32")[1] == [np.float32]
    assert half.bind(mx.cpu(), {"x": mx.nd.ones(2)}).forward()[0].dtype == np.float32
    assert half.simple_bind(mx.cpu(), x=(2,), type_dict={"x": "float64"}).forward()[0].dtype == np.float64
    assert half.simple_bind(mx.cpu(), x=(2,)).forward()[0].dtype == np.float16


def test_draws_of_classes_come_with_their_probabilities(engine: str) -> None:
    drawn = mx.sym.random.multinomial(mx.sym.Variable("p"), shape=3)
    assert drawn.list_outputs() == [f"{drawn.name}_output0", f"{drawn.name}_output1"]
    assert drawn.name.startswith("_sample_multinomial")
    classes, logs = drawn.bind(mx.cpu(), {"p": mx.nd.array([[0, 1, 0]])}).forward()
    assert classes.asnumpy().tolist() == [[1, 1, 1]]
    assert logs.asnumpy().tolist() == [[0, 0, 0]]
    assert len(mx.sym.random.multinomial(mx.sym.Variable("p"), get_prob=False)) == 1
    with pytest.raises(MXNetError, match="unknown parameter 'foo'"):
        mx.sym.random.multinomial(mx.sym.Variable("p"), foo=1)


def test_powers_by_keyword(embedded: None) -> None:
    two = mx.nd.array([2.0])
    for power in (mx.nd.power(base=two, exp=3), mx.nd.power(2, exp=two + 1), mx.nd.power(base=two, exp=two + 1)):
        assert power.asnumpy() == 8
    with pytest.raises(TypeError, match="unexpected keyword argument 'lhs'"):
        mx.nd.power(lhs=two, rhs=3)


def test_deep_graphs_do_not_recurse() -> None:
    net = mx.sym.Variable("x")
    for _ in range(5000):
        net = net + 1
    assert len(net.get_internals()) == 5001
    assert mx.sym.load_json(net.tojson()).list_arguments() == ["x"]
    assert copy.copy(net).list_arguments() == ["x"]


def test_help_tells_parameters() -> None:
    text = mx.sym.Convolution.__doc__
    assert text is not None
    assert "num_filter: an integer of at least 1; required" in text
    assert mx.sym.Convolution.__name__ == "Convolution"


def test_split_v2_is_a_method_too() -> None:
    x = mx.sym.Variable("x")
    parts = x.split_v2((1, 3), axis=1)
    assert parts.infer_shape(x=(2, 6))[1] == [(2, 1), (2, 2), (2, 3)]
    assert len(mx.sym.split_v2(x, 3).list_outputs()) == len(x.split_v2(3).list_outputs()) == 3
    with pytest.raises(ValueError, match="expected a number or a tuple of numbers, got \\[1\\]"):
        x.split_v2([1])


def test_eval_takes_auxiliary_states_by_name() -> None:
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=False, eps=0, name="bn")
    data, scale, shift = mx.nd.array([[1, 2]]), mx.nd.array([2, 2]), mx.nd.array([1, 1])
    states = {"bn_moving_mean": mx.nd.array([1, 0]), "bn_moving_var": mx.nd.array([1, 4])}
    [out] = net.eval(data=data, bn_gamma=scale, bn_beta=shift, **states)
    assert out.asnumpy().tolist() == [[1, 3]]
    with pytest.raises(ValueError, match="aux_states: expected an array for 'bn_moving_mean', got none"):
        net.eval(data=data, bn_gamma=scale, bn_beta=shift)
