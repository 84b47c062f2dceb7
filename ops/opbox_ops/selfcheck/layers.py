"""Rows of layers, losses and what stands between them."""

from __future__ import annotations

from .row import Input, Row

__all__ = ["ROWS"]

_SINGLE = ("float32", "float16", "bfloat16")


def _batch_norm(
    op: str, axis: int, small: tuple[int, ...], large: tuple[int, ...], has_axis: bool = True, **attrs: object
) -> list[Row]:
    """Statistics are in single precision, but for data in double."""
    attrs |= {"fix_gamma": False, **({"axis": axis} if has_axis else {})}

    def inputs(shape: tuple[int, ...], dtype: str) -> list[Input]:
        of_channels = (shape[axis],)
        others = [Input(of_channels, 0.5, 1.5, dtype=dtype) for _ in range(4)]
        return [Input(shape, -2, 2), *others]

    return [
        Row(op, inputs(small, dtype), inputs(large, dtype), attrs, types=types, slack=10)
        for dtype, types in (("float32", _SINGLE), ("float64", ("float64",)))
    ]


def _softmax(op: str, axis: int, small: tuple[int, ...], large: tuple[int, ...]) -> Row:
    return Row(op, [Input(small, -3, 3)], [Input(large, -3, 3)], {"axis": axis})


def _rnn(mode: str, gates: int) -> Row:
    def inputs(steps: int, batch: int, size: int, hidden: int) -> list[Input]:
        weights = gates * hidden * (size + hidden + 2)
        states = [Input((1, batch, hidden)) for _ in range(2 if mode == "lstm" else 1)]
        return [Input((steps, batch, size)), Input((weights,), -0.5, 0.5), *states]

    attrs = {"mode": mode, "num_layers": 1, "state_outputs": True, "state_size": 3}
    # Errors of a step are fed to the next one.
    return Row("RNN", inputs(4, 3, 5, 3), inputs(5, 40, 9, 70), attrs, {"state_size": 70}, slack=10)


def _convolution(op: str, **attrs: object) -> Row:
    swapped = op == "Deconvolution"
    small = [(2, 3, 7, 6), (3, 4, 3, 3) if swapped else (4, 3, 3, 3)]
    large = [(4, 16, 21, 19), (16, 24, 3, 3) if swapped else (24, 16, 3, 3)]
    biased = not swapped
    further = {"kernel": (3, 3), "pad": (1, 1), "no_bias": not biased, "num_filter": 4, **attrs}
    return Row(
        op,
        [*small, (4,)] if biased else small,
        [*large, (24,)] if biased else large,
        further,
        {"num_filter": 24},
        slack=10,
        gradient=op != "Convolution_v1",
        why="Its gradient is the other version's." if op == "Convolution_v1" else "",
    )


ROWS = [
    *(_softmax(op, -1, (3, 37), (300, 257)) for op in ("softmax", "softmin", "log_softmax")),
    *(_softmax(op, -1, (2, 5), (1100, 130)) for op in ("softmax", "log_softmax")),  # a warp a row
    *(_softmax(op, 0, (5, 3), (65, 300)) for op in ("softmax", "log_softmax")),
    Row("SoftmaxOutput", [(5, 7), Input((5,), 0, 6, "int")], [(300, 33), Input((300,), 0, 32, "int")]),
    Row("SoftmaxActivation", [(3, 5)], [(300, 65)]),
    *_batch_norm("BatchNorm", 1, (3, 5, 7), (6, 150, 9, 8)),
    *_batch_norm("BatchNorm", -1, (3, 7, 5), (40, 11, 7, 33)),
    *_batch_norm("_contrib_BatchNormWithReLU", 1, (3, 5, 7), (6, 150, 9, 8)),
    *_batch_norm("BatchNorm_v1", 1, (3, 5, 7), (6, 150, 9, 8), has_axis=False),
    *_batch_norm("_contrib_SyncBatchNorm", 1, (3, 5, 7), (6, 150, 9, 8), has_axis=False, key="check"),
    Row("LayerNorm", [(3, 5, 7), (7,), (7,)], [(300, 129), (129,), (129,)], slack=10),
    Row("GroupNorm", [(3, 6, 5), (2,), (2,)], [(70, 6, 129), (2,), (2,)], {"num_groups": 2}, slack=10),
    Row("InstanceNorm", [(3, 5, 7), (5,), (5,)], [(30, 11, 129), (11,), (11,)], slack=10),
    Row("LRN", [(2, 5, 4, 3)], [(3, 40, 21, 16)], {"nsize": 3}),
    Row("L2Normalization", [(3, 5, 7)], [(300, 129)], slack=10),
    Row("softmax_cross_entropy", [(5, 7), Input((5,), 0, 6, "int")], [(300, 33), Input((300,), 0, 32, "int")]),
    Row("SVMOutput", [(5, 7), Input((5,), 0, 6, "int")], [(300, 33), Input((300,), 0, 32, "int")]),
    Row("CTCLoss", [(7, 3, 5), Input((3, 2), 1, 4, "int")], [(20, 140, 11), Input((140, 5), 1, 10, "int")], slack=10),
    *(_convolution(op) for op in ("Convolution", "Convolution_v1", "Deconvolution")),
    *(_convolution(op, cudnn_off=True) for op in ("Convolution", "Convolution_v1")),
    Row(
        "FullyConnected",
        [(3, 5), (4, 5), (4,)],
        [(200, 96), (140, 96), (140,)],
        {"num_hidden": 4},
        {"num_hidden": 140},
    ),
    *(
        Row(
            "Pooling",
            [Input((2, 3, 7, 5), kind="distinct")],
            [Input((3, 40, 21, 16), kind="distinct")],
            {"kernel": (3, 2), "stride": (2, 2), "pad": (1, 0), "pool_type": kind},
        )
        for kind in ("max", "avg")
    ),
    Row("Pooling", [(2, 3, 7, 5)], [(3, 90, 14, 15)], {"global_pool": True, "pool_type": "avg", "kernel": (1, 1)}),
    *(_rnn(mode, gates) for mode, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1))),
    Row(
        "_contrib_DeformableConvolution",
        [(2, 4, 5, 6), Input((2, 18, 3, 4), -0.9, 0.9), (3, 4, 3, 3), (3,)],
        [(3, 8, 19, 17), Input((3, 18, 17, 15), -0.9, 0.9), (9, 8, 3, 3), (9,)],
        {"kernel": (3, 3), "num_filter": 3},
        {"num_filter": 9},
        slack=10,
    ),
    Row(
        "_contrib_ModulatedDeformableConvolution",
        [(2, 4, 5, 6), Input((2, 18, 3, 4), -0.9, 0.9), Input((2, 9, 3, 4), 0, 1), (3, 4, 3, 3), (3,)],
        [(3, 8, 19, 17), Input((3, 18, 17, 15), -0.9, 0.9), Input((3, 9, 17, 15), 0, 1), (9, 8, 3, 3), (9,)],
        {"kernel": (3, 3), "num_filter": 3},
        {"num_filter": 9},
        slack=10,
    ),
]
