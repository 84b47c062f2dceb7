"""Infer the shapes of two stacked LSTMs of 49 steps, joined at the end. Nothing but shapes is computed.

python examples/two_lstm_infer_shape.py
"""

import logging

import opbox as mx


def network():
    """The last outputs of both LSTMs side by side: (batch, 512)."""
    audio_data = mx.sym.Variable("audio_data")
    rnn1 = mx.rnn.LSTMCell(num_hidden=256, prefix="lstm1_")
    rnn1_outputs, _ = rnn1.unroll(length=49, inputs=audio_data, merge_outputs=False)
    rnn2 = mx.rnn.LSTMCell(num_hidden=256, prefix="lstm2_")
    rnn2_outputs, _ = rnn2.unroll(length=49, inputs=rnn1_outputs, merge_outputs=False)
    rnn1_last_out = mx.sym.Reshape(data=rnn1_outputs[-1], shape=(-1, 256), name="rnn1_last_out_reshape")
    rnn2_last_out = mx.sym.Reshape(data=rnn2_outputs[-1], shape=(-1, 256), name="rnn2_last_out_reshape")
    return mx.sym.Concat(rnn1_last_out, rnn2_last_out, num_args=2, dim=1, name="rnn_outputs")


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    rnn_outputs_shape = network().infer_shape(audio_data=(128, 49, 75))
    logging.info("rnn_outputs_shape:%s", rnn_outputs_shape)


if __name__ == "__main__":
    main()
