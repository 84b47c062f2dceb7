"""Layers: convolutions, normalizations, activations, outputs with a loss."""

from __future__ import annotations

import numpy as np

from ..exporting import ExportCall, exports, refuse


@exports("FullyConnected", without_effect=("num_hidden",))
def _(call: ExportCall) -> str:
    data, shape = call.inputs[0], call.shapes[0]
    if call.attr("flatten"):
        if len(shape) != 2:
            data = call.emit("Flatten", data, axis=1)
        return call.emit("Gemm", data, *call.inputs[1:], transB=1)
    out = call.emit("MatMul", data, call.emit("Transpose", call.inputs[1], perm=[1, 0]))
    return out if len(call.inputs) == 2 else call.emit("Add", out, call.inputs[2])


def _channels_second(call: ExportCall) -> None:
    layout = call.attr("layout")
    if layout and layout not in ("NCW", "NCHW", "NCDHW"):
        raise refuse(call, f"expected a layout with the channels second, got {layout}: transpose before and after it")


@exports("Convolution", "Convolution_v1", without_effect=("num_filter",))
def _(call: ExportCall) -> str:
    _channels_second(call)
    return call.emit(
        "Conv",
        *call.inputs,
        kernel_shape=call.spatial("kernel", 1),
        strides=call.spatial("stride", 1),
        dilations=call.spatial("dilate", 1),
        pads=call.spatial("pad", 0) * 2,
        group=int(call.attr("num_group")),
    )


@exports("Deconvolution", without_effect=("num_filter",))
def _(call: ExportCall) -> str:
    _channels_second(call)
    kernel, stride, dilate = call.spatial("kernel", 1), call.spatial("stride", 1), call.spatial("dilate", 1)
    pad, adj, target = call.spatial("pad", 0), call.spatial("adj", 0), call.spatial("target_shape", 0)
    if any(target):
        whole = [
            (call.size(0, i + 2) - 1) * s + d * (k - 1) + 1
            for i, (k, s, d) in enumerate(zip(kernel, stride, dilate, strict=True))
        ]
        pad = [(w - t + 1) // 2 for w, t in zip(whole, target, strict=True)]
        adj = [(w - t) % 2 for w, t in zip(whole, target, strict=True)]
    return call.emit(
        "ConvTranspose",
        *call.inputs,
        kernel_shape=kernel,
        strides=stride,
        dilations=dilate,
        pads=pad * 2,
        output_padding=adj if any(adj) else None,
        group=int(call.attr("num_group")),
    )


@exports(
    "BatchNorm",
    "BatchNorm_v1",
    "_contrib_SyncBatchNorm",
    "_contrib_BatchNormWithReLU",
    without_effect=("momentum", "use_global_stats", "ndev", "key"),
)
def _(call: ExportCall) -> str:
    if call.attr("output_mean_var"):
        raise refuse(call, "output_mean_var: ONNX's BatchNormalization tells no mean and variance in inference")
    rank, axis = call.rank, call.axis() if call.attr("axis") is not None else 1
    data, gamma, beta, mean, var = call.inputs
    if call.attr("fix_gamma"):
        gamma = call.constant(np.ones([call.size(1, 0)]), call.dtypes[1])
    data = call.moved(data, axis, 1, rank)
    out = call.emit("BatchNormalization", data, gamma, beta, mean, var, epsilon=float(call.attr("eps")))
    out = call.moved(out, 1, axis, rank)
    return call.emit("Relu", out) if call.node.op and call.node.op.name.endswith("WithReLU") else out


@exports("InstanceNorm")
def _(call: ExportCall) -> str:
    return call.emit("InstanceNormalization", *call.inputs, epsilon=float(call.attr("eps")))


@exports("LayerNorm")
def _(call: ExportCall) -> str:
    if call.attr("output_mean_var"):
        raise refuse(call, "output_mean_var: expected False, got True: ask for the mean by mx.sym.mean")
    rank, axis = call.rank, call.axis()
    data = call.moved(call.inputs[0], axis, rank - 1, rank)
    out = call.emit("LayerNormalization", data, *call.inputs[1:], axis=-1, epsilon=float(call.attr("eps")))
    return call.moved(out, rank - 1, axis, rank)


@exports("GroupNorm")
def _(call: ExportCall) -> str:
    if call.attr("output_mean_var"):
        raise refuse(call, "output_mean_var: expected False, got True: ask for the mean by mx.sym.mean")
    groups = int(call.attr("num_groups"))
    data = call.emit("Reshape", call.inputs[0], call.ints([0, groups, -1]))
    out = call.emit("InstanceNormalization", data, *call.inputs[1:], epsilon=float(call.attr("eps")))
    return call.reshape_as(out, 0)


@exports("LRN")
def _(call: ExportCall) -> str:
    alpha, beta, bias = (float(call.attr(key)) for key in ("alpha", "beta", "knorm"))
    return call.emit("LRN", call.inputs[0], alpha=alpha, beta=beta, bias=bias, size=int(call.attr("nsize")))


@exports("L2Normalization")
def _(call: ExportCall) -> str:
    axes = {
        "channel": [1],
        "instance": list(range(1, call.rank)),
        "spatial": list(range(2, call.rank)),
    }[call.attr("mode")]
    square = call.emit("Mul", call.inputs[0], call.inputs[0])
    total = call.emit("ReduceSum", square, call.ints(axes), keepdims=1)
    root = call.emit("Sqrt", call.emit("Add", total, call.constant(call.attr("eps"))))
    return call.emit("Div", call.inputs[0], root)


ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softrelu": "Softplus",
    "softsign": "Softsign",
}


@exports("Activation")
def _(call: ExportCall) -> str:
    kind = call.attr("act_type")
    if kind not in ACTIVATIONS:
        raise refuse(call, f"act_type: expected one of {', '.join(ACTIVATIONS)}, got {kind!r}")
    return call.emit(ACTIVATIONS[kind], call.inputs[0])


@exports("LeakyReLU", without_effect=("slope", "lower_bound", "upper_bound"))
def _(call: ExportCall) -> str:
    kind, data = call.attr("act_type"), call.inputs[0]
    if kind == "prelu":
        gamma = call.inputs[1]
        if call.shapes[1] != (1,) and call.rank > 2 and len(call.shapes[1]) == 1:
            gamma = call.emit("Reshape", gamma, call.ints([-1, *[1] * (call.rank - 2)]))
        return call.emit("PRelu", data, gamma)
    if kind == "gelu":
        phi = call.emit("Erf", call.emit("Mul", data, call.constant(0.5**0.5)))
        half = call.emit("Mul", data, call.constant(0.5))
        return call.emit("Mul", half, call.emit("Add", phi, call.constant(1)))
    if kind == "selu":
        return call.emit("Selu", data)
    if kind == "elu":
        return call.emit("Elu", data, alpha=float(call.attr("slope")))
    mean = (float(call.attr("lower_bound")) + float(call.attr("upper_bound"))) / 2  # what rrelu does in inference
    return call.emit("LeakyRelu", data, alpha=mean if kind == "rrelu" else float(call.attr("slope")))


@exports("softmax", "log_softmax", "softmin")
def _(call: ExportCall) -> str:
    if call.attr("use_length"):
        raise refuse(call, "use_length: ONNX's Softmax takes no lengths: mask what it reads with mx.sym.SequenceMask")
    name = call.node.op.name if call.node.op is not None else ""
    data = call.as_type(call.inputs[0], call.dtypes[0], call.out_dtypes[0])
    temperature = call.attr("temperature")
    if temperature not in (None, 1):
        data = call.emit("Div", data, call.constant(temperature))
    if name == "softmin":
        data = call.emit("Neg", data)
    return call.emit("LogSoftmax" if name == "log_softmax" else "Softmax", data, axis=call.axis())


@exports(
    "SoftmaxOutput",
    without_effect=(
        "grad_scale",
        "ignore_label",
        "use_ignore",
        "normalization",
        "out_grad",
        "smooth_alpha",
        "preserve_shape",
    ),
)
def _(call: ExportCall) -> str:
    if call.attr("multi_output"):
        return call.emit("Softmax", call.inputs[0], axis=1)
    if call.attr("preserve_shape") or call.rank == 2:
        return call.emit("Softmax", call.inputs[0], axis=-1)
    flat = call.emit("Softmax", call.emit("Flatten", call.inputs[0], axis=1), axis=-1)
    return call.reshape_as(flat, 0)


@exports("SoftmaxActivation")
def _(call: ExportCall) -> str:
    if call.attr("mode") == "channel":
        return call.emit("Softmax", call.inputs[0], axis=1)
    return call.emit("Softmax", call.inputs[0], axis=-1)


@exports("LogisticRegressionOutput", without_effect=("grad_scale",))
def _(call: ExportCall) -> str:
    return call.emit("Sigmoid", call.inputs[0])


@exports(
    "LinearRegressionOutput",
    "MAERegressionOutput",
    "SVMOutput",
    "MakeLoss",
    "make_loss",
    "BlockGrad",
    "_copy",
    without_effect=(
        "grad_scale",
        "normalization",
        "valid_thresh",
        "margin",
        "regularization_coefficient",
        "use_linear",
    ),
)
def _(call: ExportCall) -> str:
    return call.emit("Identity", call.inputs[0])


@exports(
    "_copyto",
    "IdentityAttachKLSparseReg",
    "_contrib_gradientmultiplier",
    "_identity_with_attr_like_rhs",
    without_effect=("momentum", "penalty", "sparseness_target", "scalar"),
)
def _(call: ExportCall) -> str:
    return call.emit("Identity", call.inputs[0])


@exports("Dropout", without_effect=("p", "axes"))
def _(call: ExportCall) -> str:
    if call.attr("mode") == "always":
        raise refuse(call, "mode='always': ONNX's Dropout drops nothing in inference: expected mode='training'")
    return call.emit("Identity", call.inputs[0])


@exports("Embedding", without_effect=("input_dim", "output_dim"))
def _(call: ExportCall) -> str:
    index = call.as_type(call.inputs[0], call.dtypes[0], np.int64)
    index = call.emit("Clip", index, call.ints(0), call.ints(call.size(1, 0) - 1))  # MXNet takes the nearest row
    return call.emit("Gather", call.inputs[1], index, axis=0)


@exports("UpSampling", without_effect=("multi_input_mode", "num_filter"))
def _(call: ExportCall) -> str:
    scale = int(call.attr("scale"))
    if call.attr("sample_type") == "bilinear":
        size = 2 * scale - scale % 2
        return call.emit(
            "ConvTranspose",
            *call.inputs,
            kernel_shape=[size, size],
            strides=[scale, scale],
            pads=[scale // 2] * 4,
            group=int(call.attr("num_filter")),
        )
    if len(call.inputs) != 1:
        raise refuse(call, f"expected one input, got {len(call.inputs)}: upsample each, and concatenate them")
    attrs = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return call.emit("Resize", call.inputs[0], "", call.constant([1, 1, scale, scale], np.float32), **attrs)


@exports("_contrib_div_sqrt_dim")
def _(call: ExportCall) -> str:
    return call.emit("Div", call.inputs[0], call.constant(call.size(0, call.rank - 1) ** 0.5))


@exports("ROIPooling")
def _(call: ExportCall) -> str:
    return call.emit(
        "MaxRoiPool",
        *call.inputs,
        pooled_shape=list(call.attr("pooled_size")),
        spatial_scale=float(call.attr("spatial_scale")),
    )
