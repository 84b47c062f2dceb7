"""Recurrent cells: MXNet's graphs and shapes, values of one step by hand, weights packed and unpacked."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from tests.training.recorded import VALUES

rnn = mx.rnn


def stack():
    one = rnn.SequentialRNNCell()
    one.add(rnn.LSTMCell(6, prefix="l0_"))
    one.add(rnn.DropoutCell(0.3))
    one.add(rnn.GRUCell(5, prefix="l1_"))
    return one


CELLS = {
    "rnn": lambda: rnn.RNNCell(6),
    "lstm": lambda: rnn.LSTMCell(6),
    "gru": lambda: rnn.GRUCell(6),
    "stack": stack,
    "bi": lambda: rnn.BidirectionalCell(rnn.LSTMCell(6, prefix="f_"), rnn.GRUCell(6, prefix="b_")),
    "residual": lambda: rnn.ResidualCell(rnn.RNNCell(7)),
    "zoneout": lambda: rnn.ZoneoutCell(rnn.LSTMCell(6), 0.2, 0.3),
}


@pytest.mark.parametrize("key", VALUES["networks"])
def test_unrolled_networks_are_mxnets(key):
    name, layout, merge = key.split()
    expected = VALUES["networks"][key]
    with mx.name.NameManager():
        outputs, _ = CELLS[name]().unroll(
            3, mx.sym.Variable("data"), layout=layout, merge_outputs={"True": True, "False": False}.get(merge)
        )
        out = mx.sym.Group(outputs) if isinstance(outputs, list) else outputs
    assert isinstance(outputs, list) is not expected["merged"]
    assert out.list_arguments() == expected["arguments"]
    assert out.list_outputs() == expected["outputs"]
    shapes = out.infer_shape(data=(2, 3, 7) if layout == "NTC" else (3, 2, 7))
    assert [[list(shape) for shape in part] for part in shapes] == expected["shapes"]


def test_the_two_lstm_program_of_the_blog():
    audio_data = mx.sym.Variable("audio_data")
    rnn1 = rnn.LSTMCell(num_hidden=256, prefix="lstm1_")
    rnn1_outputs, _ = rnn1.unroll(length=49, inputs=audio_data, merge_outputs=False)
    rnn2 = rnn.LSTMCell(num_hidden=256, prefix="lstm2_")
    rnn2_outputs, _ = rnn2.unroll(length=49, inputs=rnn1_outputs, merge_outputs=False)
    rnn1_last_out = mx.sym.Reshape(data=rnn1_outputs[-1], shape=(-1, 256), name="rnn1_last_out_reshape")
    rnn2_last_out = mx.sym.Reshape(data=rnn2_outputs[-1], shape=(-1, 256), name="rnn2_last_out_reshape")
    rnn_outputs = mx.sym.Concat(rnn1_last_out, rnn2_last_out, num_args=2, dim=1, name="rnn_outputs")
    shapes = str(rnn_outputs.infer_shape(audio_data=(128, 49, 75)))
    assert shapes == (
        "([(128, 49, 75), (1024, 75), (1024,), (1024, 256), (1024,), (1024, 256), (1024,), (1024, 256), (1024,)], "
        "[(128, 512)], [])"
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def run(symbol, **values):
    executor = symbol.bind(mx.cpu(), {name: mx.nd.array(value) for name, value in values.items()})
    return [out.asnumpy() for out in executor.forward()]


def test_an_lstm_computes_its_formula():
    rng = np.random.RandomState(0)
    x, wi, bi, wh, bh = (rng.randn(*s).astype("float32") for s in [(2, 3, 4), (20, 4), (20,), (20, 5), (20,)])
    outputs, states = rnn.LSTMCell(5).unroll(3, mx.sym.Variable("data"), merge_outputs=True)
    results = run(
        mx.sym.Group([outputs, *states]),
        data=x,
        lstm_i2h_weight=wi,
        lstm_i2h_bias=bi,
        lstm_h2h_weight=wh,
        lstm_h2h_bias=bh,
    )
    h, c, expected = np.zeros((2, 5)), np.zeros((2, 5)), []
    for t in range(3):
        i, f, g, o = np.split(x[:, t] @ wi.T + bi + h @ wh.T + bh, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        expected.append(h)
    np.testing.assert_allclose(results[0], np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[2], c, rtol=1e-5, atol=1e-6)


def test_begin_states_of_ones_own():
    cell = rnn.GRUCell(4)
    states = cell.begin_state(func=mx.sym.Variable)
    assert [state.name for state in states] == ["gru_begin_state_0"]
    outputs, _ = cell.unroll(2, mx.sym.Variable("data"), begin_state=states, merge_outputs=True)
    arguments, _, _ = outputs.infer_shape(data=(3, 2, 5))
    assert dict(zip(outputs.list_arguments(), arguments, strict=True))["gru_begin_state_0"] == (3, 4)


@pytest.mark.parametrize("make", [CELLS["rnn"], CELLS["lstm"], CELLS["gru"], CELLS["stack"]])
def test_weights_are_packed_and_unpacked(make):
    cell = make()
    outputs, _ = cell.unroll(2, mx.sym.Variable("data"), merge_outputs=True)
    shapes, _, _ = outputs.infer_shape(data=(2, 2, 7))
    rng = np.random.RandomState(0)
    args = {
        name: mx.nd.array(rng.randn(*shape))
        for name, shape in zip(outputs.list_arguments(), shapes, strict=True)
        if name != "data"
    }
    parts = cell.unpack_weights(args)
    back = cell.pack_weights(parts)
    assert set(back) == set(args)
    for name, value in args.items():
        np.testing.assert_array_equal(back[name].asnumpy(), value.asnumpy())


def test_gates_have_names():
    args = {
        f"lstm_{g}_{k}": mx.nd.ones((8, 3) if k == "weight" else (8,))
        for g in ("i2h", "h2h")
        for k in ("weight", "bias")
    }
    assert sorted(rnn.LSTMCell(2).unpack_weights(args))[:4] == [
        "lstm_h2h_c_bias",
        "lstm_h2h_c_weight",
        "lstm_h2h_f_bias",
        "lstm_h2h_f_weight",
    ]


def test_cells_share_weights_through_params():
    params = rnn.RNNParams("shared_")
    first, second = rnn.RNNCell(3, prefix="a_", params=params), rnn.RNNCell(3, prefix="b_", params=params)
    one, _ = first.unroll(1, [mx.sym.Variable("x")])
    two, _ = second.unroll(1, [mx.sym.Variable("y")])
    names = mx.sym.Group([one[0], two[0]]).list_arguments()
    assert [name for name in names if name.endswith("weight")] == ["shared_i2h_weight", "shared_h2h_weight"]


def test_the_forget_bias_is_initialized():
    outputs, _ = rnn.LSTMCell(2, forget_bias=3.0).unroll(1, [mx.sym.Variable("data")])
    mod = mx.mod.Module(outputs[0], label_names=None)
    mod.bind([("data", (1, 4))], for_training=False)
    mod.init_params()
    assert mod.get_params()[0]["lstm_i2h_bias"].asnumpy().tolist() == [0, 0, 3, 3, 0, 0, 0, 0]
    assert mod.get_params()[0]["lstm_h2h_bias"].asnumpy().tolist() == [0] * 8


def test_what_cannot_be_done():
    base = rnn.LSTMCell(2)
    rnn.ZoneoutCell(base)
    with pytest.raises(AssertionError, match="call that one"):
        base.begin_state()
    with pytest.raises(NotImplementedError, match="one step is not defined"):
        CELLS["bi"]()(mx.sym.Variable("x"), [])
    with pytest.raises(AssertionError, match="expected 3 steps, got 2"):
        rnn.RNNCell(2).unroll(3, [mx.sym.Variable("x"), mx.sym.Variable("y")])
    with pytest.raises(AssertionError, match="expected a cell that can be stepped"):
        rnn.ZoneoutCell(CELLS["bi"]())


def test_checkpoints_hold_unpacked_weights(tmp_path):
    cell = rnn.LSTMCell(2)
    outputs, _ = cell.unroll(1, [mx.sym.Variable("data")])
    args = {
        f"lstm_{g}_{k}": mx.nd.array(np.random.rand(8, *([2] if k == "weight" else [])))
        for g in ("i2h", "h2h")
        for k in ("weight", "bias")
    }
    prefix = str(tmp_path / "lstm")
    rnn.do_rnn_checkpoint(cell, prefix)(0, outputs[0], args, {})
    assert "lstm_i2h_f_bias" in mx.model.load_params(prefix, 1)[0]
    _, back, _ = rnn.load_rnn_checkpoint(cell, prefix, 1)
    for name, value in args.items():
        np.testing.assert_array_equal(back[name].asnumpy(), value.asnumpy())


def test_parameters_of_another_prefix_are_refused_in_a_sentence():
    weights = {"old_i2h_weight": mx.nd.ones((8, 2))}
    expected = "LSTMCell: expected new_i2h_weight among the parameters, got old_i2h_weight: make the cell"
    with pytest.raises(mx.MXNetError, match=expected):
        rnn.LSTMCell(2, prefix="new_").unpack_weights(weights)
    with pytest.raises(mx.MXNetError, match="expected new_i2h_i_weight among the parameters"):
        rnn.LSTMCell(2, prefix="new_").pack_weights(weights)
    fused = rnn.FusedRNNCell(2, mode="lstm", prefix="new_")
    with pytest.raises(mx.MXNetError, match="FusedRNNCell: expected new_parameters among the parameters, got none"):
        fused.unpack_weights({})
    with pytest.raises(mx.MXNetError, match="expected new_l0_i2h_i_weight among the parameters"):
        fused.pack_weights(weights)


def test_sentences_become_numbers_and_batches():
    encoded, vocab = rnn.encode_sentences([["a", "b"], ["b", "c", "a"]], start_label=1, invalid_label=0)
    assert encoded == [[1, 2], [2, 3, 1]]
    assert vocab == {"\n": 0, "a": 1, "b": 2, "c": 3}
    assert rnn.encode_sentences([["c", "d"]], dict(vocab), unknown_token="a")[0] == [[3, 1]]
    with pytest.raises(AssertionError, match="Unknown token d"):
        rnn.encode_sentences([["d"]], dict(vocab))
    sentences = [[1, 2, 3]] * 4 + [[1, 2, 3, 4, 5]] * 3 + [[9] * 9]
    with pytest.warns(UserWarning, match="sentences left out: 1; the longest bucket has 6 places"):
        batches = rnn.BucketSentenceIter(sentences, 2, buckets=[6, 4], invalid_label=0, layout="TN")
    assert batches.default_bucket_key == 6
    assert batches.provide_data[0].shape == (6, 2)
    shapes = sorted((b.bucket_key, b.data[0].shape, b.label[0].asnumpy()[:, 0].tolist()) for b in batches)
    assert shapes == [(4, (4, 2), [2, 3, 0, 0])] * 2 + [(6, (6, 2), [2, 3, 4, 5, 0, 0])]
    batches.reset()
    assert len(list(batches)) == 3
    assert rnn.BucketSentenceIter(sentences[:7], 2).buckets == [3, 5]
