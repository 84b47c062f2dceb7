"""FusedRNNCell: packed parameters, agreement with the cells that it unfuses into, names as MXNet has them."""

import numpy as np
import pytest

import opbox as mx

MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")


def _run(outputs: mx.sym.Symbol, args: dict[str, mx.nd.NDArray]) -> np.ndarray:
    executor = outputs.bind(mx.cpu(), {name: args[name] for name in outputs.list_arguments() if name in args})
    return executor.forward(is_train=False)[0].asnumpy()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_agrees_with_its_unfused_cells(mode: str, bidirectional: bool) -> None:
    cell = mx.rnn.FusedRNNCell(4, num_layers=2, mode=mode, bidirectional=bidirectional, prefix="net_")
    outputs, states = cell.unroll(3, mx.sym.Variable("data"), layout="TNC", merge_outputs=True)
    assert states == []
    (_, size, *_), _, _ = outputs.infer_shape(data=(3, 2, 5))
    rng = np.random.default_rng(3)
    parameters = mx.nd.array(rng.uniform(-0.5, 0.5, size))
    data = mx.nd.array(rng.uniform(-1, 1, (3, 2, 5)))
    sides = 2 if bidirectional else 1
    begin = {f"net_begin_state_{k}": mx.nd.zeros((2 * sides, 2, 4)) for k in range(2)}
    fused = _run(outputs, {"data": data, "net_parameters": parameters, **begin})

    stack = cell.unfuse()
    args = stack.pack_weights(cell.unpack_weights({"net_parameters": parameters}))
    again, _ = stack.unroll(3, mx.sym.Variable("data"), layout="TNC", merge_outputs=True)
    unfused = _run(again, {"data": data, **args})
    np.testing.assert_allclose(fused, unfused, rtol=1e-5, atol=1e-6)

    packed = cell.pack_weights(stack.unpack_weights(args))
    np.testing.assert_array_equal(packed["net_parameters"].asnumpy(), parameters.asnumpy())


def test_unpacks_under_mxnets_names() -> None:
    cell = mx.rnn.FusedRNNCell(2, num_layers=1, mode="gru", prefix="g_")
    size = 2 * 3 * (3 + 2 + 2)
    arrays = cell.unpack_weights({"g_parameters": mx.nd.arange(size), "other": mx.nd.zeros((1,))})
    assert arrays["g_l0_i2h_r_weight"].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["g_l0_h2h_o_bias"].asnumpy().tolist() == [size - 2, size - 1]
    assert set(arrays) == {"other"} | {
        f"g_l0_{group}{gate}_{kind}"
        for group in ("i2h", "h2h")
        for gate in ("_r", "_z", "_o")
        for kind in ("weight", "bias")
    }
    with pytest.raises(ValueError, match="parameters: expected"):
        cell.unpack_weights({"g_parameters": mx.nd.zeros((5,))})


def test_initializer_fills_each_gate() -> None:
    cell = mx.rnn.FusedRNNCell(3, num_layers=2, mode="lstm", prefix="l_", forget_bias=2.0)
    outputs, _ = cell.unroll(2, mx.sym.Variable("data"), layout="TNC")
    attrs = outputs.attr_dict() if hasattr(outputs, "attr_dict") else outputs[0].attr_dict()
    array = mx.nd.zeros((4 * 3 * (5 + 3 + 2) + 4 * 3 * (3 + 3 + 2),))
    desc = mx.init.InitDesc("l_parameters", attrs["l_parameters"])
    mx.init.One()(desc, array)
    arrays = cell.unpack_weights({"l_parameters": array})
    assert arrays["l_l1_i2h_f_bias"].asnumpy().tolist() == [2, 2, 2]
    assert arrays["l_l0_i2h_i_bias"].asnumpy().tolist() == [0, 0, 0]
    assert arrays["l_l0_h2h_c_weight"].asnumpy().min() == 1


def test_returns_states_and_splits_steps() -> None:
    cell = mx.rnn.FusedRNNCell(4, mode="lstm", get_next_state=True)
    with pytest.warns(UserWarning, match="TNC"):
        outputs, states = cell.unroll(3, mx.sym.Variable("data"), merge_outputs=False)
    assert len(outputs) == 3
    assert len(states) == 2
    shapes = mx.sym.Group([*outputs, *states]).infer_shape(data=(2, 3, 5))[1]
    assert shapes == [(2, 4)] * 3 + [(1, 2, 4)] * 2
    with pytest.raises(NotImplementedError, match="use unroll"):
        cell(mx.sym.Variable("x"), [])
