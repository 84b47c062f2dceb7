"""Executors on both engines."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import MXNetError, ShapeError, UnderdeterminedError

pytestmark = pytest.mark.usefixtures("engine")


def mlp() -> mx.Symbol:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def affine() -> mx.Symbol:
    return mx.sym.Variable("a") * 2 + mx.sym.Variable("b")


def test_infer_shape() -> None:
    net = mlp()
    assert net.infer_shape(data=(4, 5)) == ([(4, 5), (3, 5), (3,), (4,)], [(4, 3)], [])
    assert net.infer_shape((4, 5)) == net.infer_shape(data=(4, 5))
    with pytest.warns(UserWarning, match="infer_shape: give more shapes"):
        assert net.infer_shape() == (None, None, None)
    arguments, outputs, _ = net.infer_shape_partial(data=(0, 5))
    assert (arguments[1], outputs) == ((3, 5), [(0, 3)])
    assert net.infer_shape_partial()[0][0] == ()
    with pytest.raises(MXNetError, match="keyword argument 'dta' not found"):
        net.infer_shape(dta=(4, 5))
    with pytest.raises(TypeError, match="expected a tuple, got"):
        net.infer_shape(data=[4, 5])
    with pytest.raises(ValueError, match="expected shapes by position or by name, got both"):
        net.infer_shape((4, 5), data=(4, 5))


def masked() -> mx.Symbol:
    """A network whose output's shape follows from values."""
    return mx.sym.contrib.boolean_mask(mx.sym.Variable("x"), mx.sym.Variable("i"))


OPEN_OUTPUT = "expected outputs whose shapes follow from the arguments'"


def test_what_shapes_do_not_say_is_warned_of_at_the_users_line() -> None:
    def warned(net: mx.Symbol, words: str, **shapes: tuple[int, ...]) -> None:
        with pytest.warns(UserWarning, match=words) as caught:
            assert net.infer_shape(**shapes) == (None, None, None)
        assert [warning.filename for warning in caught] == [__file__]

    warned(mlp(), "give more shapes; these arguments stay open")
    warned(masked(), OPEN_OUTPUT, x=(3, 2), i=(3,))


def test_a_bind_to_shapes_that_say_too_little_names_what_stays_open() -> None:
    with pytest.raises(
        UnderdeterminedError, match=r"^simple_bind: .*, got none: data \(\), fc_weight \(3, 0\), .* stay open: "
    ):
        mlp().simple_bind()
    with pytest.raises(
        UnderdeterminedError, match=r"^simple_bind: .*, got softmax_label \(4,\): data .* stay open: give"
    ):
        mlp().simple_bind(softmax_label=(4,))
    with pytest.raises(UnderdeterminedError, match=f"^simple_bind: {OPEN_OUTPUT}"):
        masked().simple_bind(x=(3, 2), i=(3,))


def test_contradictions_name_node_argument_and_line() -> None:
    expected = r"fc \(FullyConnected, test_executor\.py:\d+\): weight: expected \(3, 5\), got \(3, 6\)"
    with pytest.raises(ShapeError, match=expected):
        mlp().infer_shape(data=(4, 5), fc_weight=(3, 6))


def test_infer_type() -> None:
    net = mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=2)
    assert net.infer_type(x="float64") == ([np.float64] * 3, [np.float64], [])
    assert net.infer_type(np.float16)[1] == [np.float16]
    with pytest.warns(UserWarning, match="infer_type: give more types"):
        assert net.infer_type() == (None, None, None)
    assert net.infer_type_partial() == ([None] * 3, [None], [])


def test_the_engine_knows_every_type_that_a_variable_may_have() -> None:
    for dtype in ("int16", "uint16", "uint32", "uint64"):
        data = mx.sym.Variable("x", shape=(2, 3), dtype=dtype)
        assert mx.sym.Flatten(data).infer_type() == ([np.dtype(dtype).type], [np.dtype(dtype).type], [])


def test_forward_and_backward_against_numpy() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 5)).astype("f"), rng.standard_normal((3, 5)).astype("f")
    b, y = rng.standard_normal(3).astype("f"), np.array([0, 1, 2, 0], "f")
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    executor.copy_params_from({"fc_weight": mx.nd.array(w), "fc_bias": mx.nd.array(b)})
    (out,) = executor.forward(is_train=True, data=x, softmax_label=mx.nd.array(y))
    executor.backward()
    z = np.exp(x @ w.T + b)
    p = z / z.sum(1, keepdims=True)
    g = p - np.eye(3, dtype="f")[y.astype(int)]
    np.testing.assert_allclose(out.asnumpy(), p, rtol=1e-5)
    np.testing.assert_allclose(executor.grad_dict["fc_weight"].asnumpy(), g.T @ x, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(executor.grad_dict["data"].asnumpy(), g @ w, rtol=1e-4, atol=1e-6)
    assert list(executor.arg_dict) == ["data", "fc_weight", "fc_bias", "softmax_label"]
    assert list(executor.output_dict) == ["softmax_output"]
    assert executor.outputs[0] is out


@pytest.mark.parametrize("as_list", [False, True])
def test_bind_with_head_gradients_and_requests(as_list: bool) -> None:
    args = {"a": mx.nd.array([1, 2]), "b": mx.nd.array([2, 3])}
    grads = {"a": mx.nd.array([10, 10]), "b": mx.nd.zeros(2)}
    executor = affine().bind(
        mx.cpu(),
        list(args.values()) if as_list else args,
        args_grad=list(grads.values()) if as_list else grads,
        grad_req=["add", "write"] if as_list else {"a": "add", "b": "write"},
    )
    out = executor.forward(is_train=True)[0]
    assert out.asnumpy().tolist() == [4, 7]
    executor.backward(mx.nd.array([1, 2]))
    executor.backward([mx.nd.array([1, 2])])
    executor.backward({executor._names[2][0]: mx.nd.array([1, 2])})
    assert grads["a"].asnumpy().tolist() == [16, 22]
    assert grads["b"].asnumpy().tolist() == [1, 2]


def test_bind_without_gradients() -> None:
    executor = affine().bind(mx.cpu(), {"a": mx.nd.ones(2), "b": mx.nd.ones(2)})
    executor.forward()
    assert executor.grad_arrays == [None, None]
    assert affine().eval(a=mx.nd.ones(2), b=mx.nd.ones(2))[0].asnumpy().tolist() == [3, 3]


def test_what_bind_refuses() -> None:
    net = affine()
    with pytest.raises(ValueError, match="args: expected an array for 'b', got a"):
        net.bind(mx.cpu(), {"a": mx.nd.ones(2)})
    with pytest.raises(ValueError, match="args: expected 2 arrays \\(a, b\\), got 1"):
        net.bind(mx.cpu(), [mx.nd.ones(2)])
    with pytest.raises(TypeError, match="expected a Context"):
        net.bind("cpu", {})
    with pytest.raises(ValueError, match="grad_req of a: expected one of write, add, null"):
        net.simple_bind(mx.cpu(), grad_req="wrote", a=(2,), b=(2,))
    with pytest.raises(TypeError):
        net.bind(mx.cpu(), {"a": np.ones(2), "b": np.ones(2)})
    with pytest.raises(MXNetError, match="different names, got a, a: give args, args_grad and grad_req as lists"):
        (mx.sym.Variable("a") + mx.sym.Variable("a")).bind(mx.cpu(), {"a": mx.nd.ones(2)})


def test_feeds_are_checked() -> None:
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    with pytest.raises(TypeError, match="unknown argument 'dta'"):
        executor.forward(dta=np.ones((4, 5)))
    with pytest.raises(ValueError, match="expected shape \\(4, 5\\), as bound, got"):
        executor.forward(data=np.ones((4, 6)))
    with pytest.raises(ValueError, match="fc2_weight"):
        executor.copy_params_from({"fc2_weight": mx.nd.ones(2)})
    executor.copy_params_from({"fc2_weight": mx.nd.ones(2)}, allow_extra_params=True)


def test_auxiliary_states_move_in_training_only() -> None:
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn", fix_gamma=False, momentum=0.5)
    executor = net.simple_bind(mx.cpu(), data=(8, 2))
    assert list(executor.aux_dict) == ["bn_moving_mean", "bn_moving_var"]
    values = np.arange(16, dtype="f").reshape(8, 2)
    executor.forward(is_train=False, data=values)
    assert executor.aux_dict["bn_moving_mean"].asnumpy().tolist() == [0, 0]
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((8, 2)))
    np.testing.assert_allclose(executor.aux_dict["bn_moving_mean"].asnumpy(), values.mean(0) / 2)


def test_reshape_shares_parameters() -> None:
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    executor.arg_dict["fc_weight"][:] = 1
    smaller = executor.reshape(data=(2, 5), softmax_label=(2,))
    assert smaller.forward(data=np.ones((2, 5)))[0].shape == (2, 3)
    smaller.arg_dict["fc_weight"][:] = 2
    assert executor.arg_dict["fc_weight"].asnumpy().max() == 2
    with pytest.raises(MXNetError, match="allow_up_sizing"):
        executor.reshape(data=(8, 5), softmax_label=(8,))
    assert executor.reshape(allow_up_sizing=True, data=(8, 5), softmax_label=(8,)).arg_dict["data"].shape == (8, 5)
    with pytest.raises(MXNetError, match="partial_shaping"):
        executor.reshape(data=(4, 3))


def test_types_by_name() -> None:
    executor = affine().simple_bind(mx.cpu(), type_dict={"a": "float64"}, a=(2,), b=(2,))
    assert executor.arg_dict["b"].dtype == np.float64
    assert executor.forward()[0].dtype == np.float64


def test_arguments_of_one_name_are_bound_by_lists() -> None:
    """As in MXNet: arrays, gradients and requests go by position; only the dicts by name are refused."""
    a, b = mx.sym.Variable("a"), mx.sym.Variable("a")
    arrays, grads = [mx.nd.array([2]), mx.nd.array([5])], [mx.nd.array([1]), mx.nd.array([1])]
    executor = (a * b).bind(mx.cpu(), arrays, grads, ["add", "write"])
    assert executor.forward(is_train=True)[0].asscalar() == 10
    executor.backward(mx.nd.ones(1))
    assert [grad.asscalar() for grad in executor.grad_arrays] == [1 + 5, 2]
    with pytest.raises(ValueError, match=r"Duplicate names detected, \['a', 'a'\]: expected arguments of different"):
        _ = executor.arg_dict


def test_requests_of_none_are_null() -> None:
    assert affine().simple_bind(mx.cpu(), grad_req=None, a=(2,), b=(2,)).grad_arrays == [None, None]


def test_dicts_by_name_stay_the_same() -> None:
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    assert executor.arg_dict is executor.arg_dict
    assert executor.output_dict is executor.output_dict
    assert executor.arg_dict["data"] is executor.arg_arrays[0]


def test_head_gradients_that_nobody_reads_may_be_anything() -> None:
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    executor.forward(is_train=True, softmax_label=mx.nd.zeros(4))
    executor.backward([mx.nd.ones((9, 9)), mx.nd.ones(2)])
    np.testing.assert_allclose(executor.grad_dict["fc_bias"].asnumpy(), [4 / 3 - 4, 4 / 3, 4 / 3], rtol=1e-6)
    executor = affine().simple_bind(mx.cpu(), a=(2,), b=(2,))
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((2, 1)))
    with pytest.raises(ShapeError, match=r"head gradient of .*: expected \(2,\), got \(2, 1\)"):
        mx.nd.waitall()


def test_names_that_the_symbol_lacks_are_passed_over() -> None:
    """An iterator provides labels that a network for inference has no use for."""
    executor = affine().simple_bind(mx.cpu(), type_dict={"z": "float64"}, a=(2,), b=(2,), softmax_label=(2,))
    assert executor.forward()[0].shape == (2,)


def test_an_executor_shares_the_arrays_of_another() -> None:
    first = mlp().simple_bind(mx.cpu(), data=(4, 5))
    names = ["fc_weight", "fc_bias"]
    second = mlp().simple_bind(mx.cpu(), data=(2, 5), shared_arg_names=names, shared_exec=first, shared_buffer={})
    assert [second.arg_dict[name] is first.arg_dict[name] for name in names] == [True, True]
    assert second.arg_dict["data"].shape == (2, 5)


def test_reshape_refuses_what_says_too_little() -> None:
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    with pytest.raises(MXNetError, match=r"reshape: expected new shapes of some of data, .*, got dta"):
        executor.reshape(dta=(2, 5))
    with pytest.raises(MXNetError, match=r"reshape: expected new shapes of some of data, .*, got none"):
        executor.reshape()


def test_debug_str_ends_as_mxnets() -> None:
    """Programs that plan memory read the number as this test does."""
    executor = mlp().simple_bind(mx.cpu(), data=(300_000, 5))
    text = executor.debug_str()
    assert "Op:FullyConnected, Name=fc" in text
    lines = text.split("\n")
    assert lines[-2:] == ["Total 11 TempSpace resource requested", ""]
    # The output alone has 300,000 x 3 numbers of 4 bytes: 3.4 MiB.
    assert lines[-3].split()[2:] == ["MB", "allocated"]
    assert int(lines[-3].split()[1]) >= 3


def test_a_monitor_sees_the_outputs() -> None:
    seen: list[str] = []
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    executor.set_monitor_callback(lambda name, array: seen.append(name), monitor_all=True)
    executor.forward()
    fc = ["data", "fc_data", "fc_weight", "fc_weight", "fc_bias", "fc_bias", "fc_output"]
    assert seen == [*fc, "softmax_data", "softmax_label", "softmax_label", "softmax_output"]


def test_a_monitor_sees_every_operator_inside() -> None:
    """Names as MXNet 1.9.1 shows them for this network, bn_mean and bn_var included."""
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    net = mx.sym.relu(mx.sym.BatchNorm(net, fix_gamma=False, name="bn"), name="act")
    parts = mx.sym.SliceChannel(mx.sym.exp(net * 2, name="ex"), num_outputs=3, name="sl")
    executor = mx.sym.MakeLoss(parts[0] + parts[2], name="out").simple_bind(mx.cpu(), data=(4, 5))
    executor.arg_dict["fc_weight"][:] = mx.nd.array(np.arange(15).reshape(3, 5) % 4)
    executor.arg_dict["bn_gamma"][:] = 1
    shown: dict[str, np.ndarray] = {}
    executor.set_monitor_callback(lambda name, array: shown.update({name: array.asnumpy()}))
    data = mx.nd.array(np.random.default_rng(0).standard_normal((4, 5)))
    outputs = executor.forward(is_train=True, data=data)
    outer = " ".join(name for name in shown if not name.startswith(("_mul", "_plus")))
    inner = "fc_output bn_output bn_mean bn_var act_output ex_output sl_output0 sl_output1 sl_output2"
    assert outer == f"{inner} out_output"
    rows = data.asnumpy() @ executor.arg_dict["fc_weight"].asnumpy().T
    np.testing.assert_allclose(shown["fc_output"], rows, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(shown["bn_mean"], rows.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(shown["ex_output"], np.exp(2 * shown["act_output"]), rtol=1e-5)
    np.testing.assert_allclose(shown["sl_output2"], shown["ex_output"][:, 2:], rtol=1e-6)
    np.testing.assert_array_equal(shown["out_output"], outputs[0].asnumpy())
    # What is run is the same, and the gradients follow from it.
    executor.backward()
    expected = executor.grad_dict["fc_weight"].asnumpy()
    executor.set_monitor_callback(None)
    shown.clear()
    executor.forward(is_train=True)
    executor.backward()
    assert not shown
    np.testing.assert_allclose(executor.grad_dict["fc_weight"].asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_monitor_sees_the_operators_of_backward() -> None:
    """Names and order as MXNet 1.9.1 shows them for this network: an output for each input, labels included."""
    net = mx.sym.relu(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1"), name="act")
    net = mx.sym.FullyConnected(mx.sym.Concat(net, net * 2, name="cc"), num_hidden=3, name="fc2")
    executor = mx.sym.SoftmaxOutput(net, name="softmax").simple_bind(mx.cpu(), data=(2, 5))
    generator = np.random.default_rng(0)
    for array in executor.arg_arrays[:-1]:
        array[:] = mx.nd.array(generator.standard_normal(array.shape))
    executor.forward(is_train=True)
    executor.backward()
    expected = {name: grad.asnumpy() for name, grad in executor.grad_dict.items()}
    shown: list[tuple[str, np.ndarray]] = []
    executor.set_monitor_callback(lambda name, array: shown.append((name, array.asnumpy())))
    executor.forward(is_train=True)
    shown.clear()
    executor.backward()
    names = " ".join(name for name, _ in shown if not name.startswith("_mul"))
    fc2 = "fc2_backward_output0 fc2_backward_output1 fc2_backward_output2 cc_backward_output0 cc_backward_output1"
    first = "sum_grad_output act_backward_output fc1_backward_output0 fc1_backward_output1 fc1_backward_output2"
    assert names == f"softmax_backward_output0 softmax_backward_output1 {fc2} {first}"
    values = dict(shown)
    assert not values["softmax_backward_output1"].any()
    for name, grad in (("fc1_backward_output1", "fc1_weight"), ("fc2_backward_output2", "fc2_bias")):
        np.testing.assert_allclose(values[name], expected[grad], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(executor.grad_dict[grad].asnumpy(), expected[grad], rtol=1e-5, atol=1e-6)
    monitor = mx.mon.Monitor(1, pattern="fc1_backward_output1")
    monitor.install(executor)
    monitor.tic()
    executor.forward(is_train=True)
    executor.backward()
    assert [name for _, name, _ in monitor.toc()] == ["fc1_backward_output1"]


def test_a_monitors_numbers_have_the_digits_of_their_type() -> None:
    executor = affine().simple_bind(mx.cpu(), a=(1,), b=(1,))
    monitor = mx.mon.Monitor(1, stat_func=lambda array: array, pattern="a$")
    monitor.install(executor)
    monitor.tic()
    executor.forward(a=mx.nd.array([0.1]))
    assert monitor.toc() == [(1, "a", "0.1\t")]


def test_a_monitor_collects_arguments_and_auxiliary_states() -> None:
    """Behind what the operators have put out, as they are after the batch."""
    net = mx.sym.BatchNorm(mx.sym.Variable("x"), momentum=0.5, name="bn")
    executor = net.simple_bind(mx.cpu(), x=(2, 1))
    executor.aux_dict["bn_moving_mean"][:] = 1
    executor.aux_dict["bn_moving_var"][:] = 1
    monitor = mx.mon.Monitor(1, stat_func=lambda array: array, pattern="x|bn_m|bn_output")
    monitor.install(executor)
    monitor.tic()
    executor.forward(is_train=True, x=mx.nd.array([[4], [6]]))
    executor.backward(mx.nd.ones((2, 1)))
    shown = [(name, text.split()[-1].strip("[]")) for _, name, text in monitor.toc()]
    assert [name for name, _ in shown] == ["bn_output", "bn_mean", "x", "bn_moving_mean", "bn_moving_var"]
    assert dict(shown)["bn_moving_mean"] == "3.0"  # half of 1 and half of 5
    assert dict(shown)["bn_moving_var"] == "1.0"


def test_what_of_backward_cannot_be_watched() -> None:
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    executor.forward(is_train=True)
    session = mx.cpu().session
    with pytest.raises(MXNetError, match="watch: expected a number or null for each of 5 outputs, got 1"):
        session.ask({"do": "backward", "executor": executor._id, "watch": [session.new_id()]})


def test_a_monitor_has_copied_only_what_it_collects() -> None:
    seen: list[str] = []

    def note(array: mx.NDArray) -> mx.NDArray:
        seen.append(str(array.shape))
        return array

    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    session = mx.cpu().session
    monitor = mx.mon.Monitor(2, note, pattern="fc_output")
    monitor.install(executor)
    executor.forward()
    session.flush()
    requests = session.requests
    for step in range(3):
        monitor.tic()
        executor.forward()
        assert [name for _, name, _ in monitor.toc()] == ([] if step == 1 else ["fc_output"])
    assert seen == ["(4, 3)"] * 2
    assert session.requests > requests


def test_what_cannot_be_watched() -> None:
    executor = mlp().simple_bind(mx.cpu(), data=(4, 5))
    session = mx.cpu().session
    command = {"do": "forward", "executor": executor._id, "watch": {"fc_outptu": session.new_id()}}
    with pytest.raises(
        MXNetError, match="watch: expected names of operators' outputs in the executor's graph, got 'fc_out"
    ):
        session.ask(command)
