"""Further networks as MXNet symbol JSON: kinds of layers that those of `peer_networks` have not."""

from __future__ import annotations

from typing import Any

from peer_networks import Builder

__all__ = ["dcgan", "densenet121", "gru_layers", "lstm_layers", "mobilenet", "squeezenet", "transformer"]

MOBILENET = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
)
"""Filters and stride of each pair of convolutions."""
SQUEEZENET = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
"""Filters of each module's squeeze, and of each half of its expansion; behind the third and seventh is pooling."""


def _normalized(b: Builder, name: str, data: int) -> int:
    return b.relu(f"{name}_relu", b.batch_norm(f"{name}_bn", data))


def _classified(b: Builder, data: int, classes: int = 1000) -> dict[str, Any]:
    x = b.call("Pooling", "last_pool", data, kernel=(1, 1), pool_type="avg", global_pool=True)
    return b.finish(b.dense("fc", b.call("Flatten", "flat", x), classes))


def mobilenet() -> dict[str, Any]:
    """Howard et al., MobileNets, 2017: depthwise convolutions, and convolutions of 1 x 1."""
    b, channels = Builder(), 32
    x = _normalized(b, "conv0", b.convolution("conv0", b.variable("data"), channels, 3, 2))
    for i, (filters, stride) in enumerate(MOBILENET):
        x = b.call(
            *("Convolution", f"depth{i}", x),
            params="weight",
            num_filter=channels,
            num_group=channels,
            kernel=(3, 3),
            stride=(stride, stride),
            pad=(1, 1),
            no_bias=True,
        )
        x = _normalized(b, f"depth{i}", x)
        x, channels = _normalized(b, f"point{i}", b.convolution(f"point{i}", x, filters, 1)), filters
    return _classified(b, x)


def squeezenet() -> dict[str, Any]:
    """Iandola et al., SqueezeNet, 2016: channels joined after convolutions of 1 x 1 and 3 x 3."""
    b = Builder()
    x = b.relu("relu0", b.convolution("conv0", b.variable("data"), 96, 7, 2, bias=True))
    x = b.call("Pooling", "pool0", x, kernel=(3, 3), stride=(2, 2), pool_type="max")
    for i, (squeeze, expand) in enumerate(SQUEEZENET):
        x = b.relu(f"squeeze{i}_relu", b.convolution(f"squeeze{i}", x, squeeze, 1, bias=True))
        halves = [
            b.relu(f"expand{i}_{kernel}_relu", b.convolution(f"expand{i}_{kernel}", x, expand, kernel, bias=True))
            for kernel in (1, 3)
        ]
        x = b.call("Concat", f"join{i}", *halves, dim=1, num_args=2)
        if i in (2, 6):
            x = b.call("Pooling", f"pool{i}", x, kernel=(3, 3), stride=(2, 2), pool_type="max")
    x = b.relu("last_relu", b.convolution("last", x, 1000, 1, bias=True))
    x = b.call("Pooling", "last_pool", x, kernel=(1, 1), pool_type="avg", global_pool=True)
    return b.finish(b.call("Flatten", "flat", x))


def densenet121() -> dict[str, Any]:
    """Huang et al., Densely Connected Convolutional Networks, 2017."""
    b, channels, growth = Builder(), 64, 32
    x = _normalized(b, "conv0", b.convolution("conv0", b.variable("data"), channels, 7, 2))
    x = b.call("Pooling", "pool0", x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for block, layers in enumerate((6, 12, 24, 16)):
        if block:
            channels //= 2
            x = b.convolution(f"shrink{block}", _normalized(b, f"shrink{block}", x), channels, 1)
            x = b.call("Pooling", f"pool{block}", x, kernel=(2, 2), stride=(2, 2), pool_type="avg")
        for layer in range(layers):
            name = f"block{block}_{layer}"
            y = b.convolution(f"{name}_a", _normalized(b, f"{name}_a", x), 4 * growth, 1)
            y = b.convolution(f"{name}_b", _normalized(b, f"{name}_b", y), growth, 3)
            x = b.call("Concat", f"{name}_join", x, y, dim=1, num_args=2)
            channels += growth
    return _classified(b, _normalized(b, "last", x))


def transformer(layers: int = 2, width: int = 512, heads: int = 8) -> dict[str, Any]:
    """Encoder layers over data (batch, tokens, width): Vaswani et al., 2017, with GELU; the first token classified."""
    b = Builder()
    x = b.variable("data")

    def dense(name: str, data: int, hidden: int) -> int:
        return b.call("FullyConnected", name, data, params="weight bias", num_hidden=hidden, flatten=False)

    def split(name: str, data: int) -> int:
        data = b.call("Reshape", f"{name}_split", data, shape=(0, 0, heads, -1))
        data = b.call("transpose", f"{name}_turn", data, axes=(0, 2, 1, 3))
        return b.call("Reshape", f"{name}_heads", data, shape=(-3, 0, 0))

    def normed(name: str, data: int, more: int) -> int:
        return b.call("LayerNorm", name, b.call("elemwise_add", f"{name}_sum", data, more), params="gamma beta")

    for i in range(layers):
        q, k, v = (split(f"{name}{i}", dense(f"{name}{i}_dense", x, width)) for name in ("query", "key", "value"))
        scores = b.call("batch_dot", f"scores{i}", q, k, transpose_b=True)
        scores = b.call("_mul_scalar", f"scaled{i}", scores, scalar=(width / heads) ** -0.5)
        y = b.call("batch_dot", f"mix{i}", b.call("softmax", f"attention{i}", scores, axis=-1), v)
        y = b.call("Reshape", f"mix{i}_split", y, shape=(-4, -1, heads, 0, 0))
        y = b.call("transpose", f"mix{i}_turn", y, axes=(0, 2, 1, 3))
        x = normed(f"norm{i}_a", x, dense(f"out{i}", b.call("Reshape", f"mix{i}_join", y, shape=(0, 0, -3)), width))
        y = b.call("LeakyReLU", f"gelu{i}", dense(f"wide{i}", x, 4 * width), act_type="gelu")
        x = normed(f"norm{i}_b", x, dense(f"narrow{i}", y, width))
    first = b.call("slice_axis", "first", x, axis=1, begin=0, end=1)
    return b.finish(b.dense("fc", b.call("Flatten", "flat", first), 10))


def _recurrent(mode: str, states: tuple[str, ...]) -> dict[str, Any]:
    b = Builder()
    arrays = [b.variable(name) for name in ("data", "parameters", *states)]
    x = b.call("RNN", "rnn", *arrays, state_size=256, num_layers=2, mode=mode)
    return b.finish(b.dense("fc", b.call("SequenceLast", "last", x), 10))


def lstm_layers() -> dict[str, Any]:
    """Two layers in one operator over data (time, batch, inputs); the last state is classified."""
    return _recurrent("lstm", ("h", "c"))


def gru_layers() -> dict[str, Any]:
    """The same of GRU."""
    return _recurrent("gru", ("h",))


def dcgan() -> dict[str, Any]:
    """The generator of Radford et al., 2015, of images of 64 x 64 from data (batch, 100, 1, 1)."""
    b = Builder()
    x = b.variable("data")
    for i, filters in enumerate((512, 256, 128, 64, 3)):
        stride, pad = (2, 1) if i else (1, 0)
        x = b.call(
            *("Deconvolution", f"up{i}", x),
            params="weight",
            kernel=(4, 4),
            stride=(stride, stride),
            pad=(pad, pad),
            num_filter=filters,
            no_bias=True,
        )
        x = _normalized(b, f"up{i}", x) if filters > 3 else b.call("Activation", "tanh", x, act_type="tanh")
    return b.finish(b.call("Flatten", "flat", x))
