"""Layers: products, convolutions, pooling, normalizations, softmax."""

from __future__ import annotations

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports


@imports("Gemm")
def _(call: ImportCall) -> Symbol:
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    data = call.symbol(0)
    if call.attr("transA", 0):
        data = call.step("transpose", data)
    if alpha == beta == 1 and call.is_constant(1) and (not call.has(2) or call.is_constant(2)):
        weight, bias = call.constant(1), call.constant(2).reshape(-1) if call.has(2) else None
        width = weight.shape[0] if call.attr("transB", 0) else weight.shape[1]
        if bias is None or bias.size in (1, width):
            return _dense(call, data, width, bias)
    right = call.symbol(1)
    out = call.step("dot", data, right, transpose_b=bool(call.attr("transB", 0)))
    if alpha != 1:
        out = call.step("_mul_scalar", out, scalar=alpha)
    if not call.has(2):
        return call.make("_copy", out)
    rank = call.rank(2)
    added = call.symbol(2) if rank == 2 else call.step("Reshape", call.symbol(2), shape=(1, -1))
    return call.make("broadcast_add", out, call.step("_mul_scalar", added, scalar=beta))


def _dense(
    call: ImportCall, data: Symbol, width: int, bias: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None
) -> Symbol:
    """FullyConnected, with the parameters under the names that they have in the model."""
    if call.attr("transB", 0):
        parts = [data, call.symbol(1)]
    else:
        parts = [data, call.graph.variable(f"{call.node.input[1]}_transposed", call.constant(1).T.copy())]
    if bias is not None:
        parts.append(call.graph.variable(call.node.input[2], np.broadcast_to(bias, (width,)).copy()))
    return call.make("FullyConnected", *parts, num_hidden=width, no_bias=bias is None)


@imports("MatMul")
def _(call: ImportCall) -> Symbol:
    left, right = call.rank(0), call.rank(1)
    if right == 2 or left == right == 1 or (left == 2 and right == 1):
        return call.make("dot", call.symbol(0), call.symbol(1))
    if left == right == 3:
        return call.make("batch_dot", call.symbol(0), call.symbol(1))
    if left == right:
        return call.make("_linalg_gemm2", call.symbol(0), call.symbol(1))
    raise call.refuse(f"expected matrices, or stacks of as many dimensions, got {left} and {right} dimensions")


def _padding(
    call: ImportCall, kernel: list[int], strides: list[int], dilations: list[int]
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial dimension."""
    auto, count = call.attr("auto_pad", "NOTSET"), len(kernel)
    if auto in ("NOTSET", ""):
        pads = list(call.attr("pads", [0] * 2 * count))
        return pads[:count], pads[count:]
    if auto == "VALID":
        return [0] * count, [0] * count
    before, after = [], []
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        size = call.shape(0)[axis + 2]
        if size is None:
            raise call.refuse(f"auto_pad {auto}: expected a known size of axis {axis + 2}, got an unknown one")
        whole = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        small, large = whole // 2, whole - whole // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return before, after


def _padded(call: ImportCall, before: list[int], after: list[int], value: float) -> Symbol:
    """The data with the padding that the operator itself cannot have."""
    width = [0, 0, 0, 0, *(part for pair in zip(before, after, strict=True) for part in pair)]
    data = call.symbol(0)
    if len(before) == 1:  # Pad wants four dimensions or five
        wide = call.step("expand_dims", data, axis=2)
        padded = call.step("Pad", wide, mode="constant", pad_width=[*width[:4], 0, 0, *width[4:]], constant_value=value)
        return call.step("squeeze", padded, axis=2)
    return call.step("Pad", data, mode="constant", pad_width=width, constant_value=value)


@imports("Conv")
def _(call: ImportCall) -> Symbol:
    weight = call.shape(1)
    kernel = [int(k or 0) for k in weight[2:]]
    strides, dilations = (list(call.attr(key, [1] * len(kernel))) for key in ("strides", "dilations"))
    before, after = _padding(call, kernel, strides, dilations)
    data = call.symbol(0)
    if before != after:
        data, before = _padded(call, before, after, 0.0), [0] * len(kernel)
    parts = [call.symbol(i) for i in range(1, call.count) if call.has(i)]
    return call.make(
        "Convolution",
        data,
        *parts,
        kernel=tuple(kernel),
        stride=tuple(strides),
        dilate=tuple(dilations),
        pad=tuple(before),
        num_filter=weight[0],
        num_group=call.attr("group", 1),
        no_bias=len(parts) == 1,
    )


@imports("ConvTranspose")
def _(call: ImportCall) -> Symbol:
    weight = call.shape(1)
    kernel = [int(k or 0) for k in weight[2:]]
    strides, dilations = (list(call.attr(key, [1] * len(kernel))) for key in ("strides", "dilations"))
    if call.attr("auto_pad", "NOTSET") != "NOTSET" or call.attr("output_shape"):
        raise call.refuse("expected explicit pads, got auto_pad or output_shape")
    before, after = _padding(call, kernel, strides, dilations)
    if before != after:
        raise call.refuse(f"pads: expected the same before and after, got {before} and {after}")
    group, parts = call.attr("group", 1), [call.symbol(i) for i in range(1, call.count) if call.has(i)]
    return call.make(
        "Deconvolution",
        call.symbol(0),
        *parts,
        kernel=tuple(kernel),
        stride=tuple(strides),
        dilate=tuple(dilations),
        pad=tuple(before),
        adj=tuple(call.attr("output_padding", [0] * len(kernel))),
        num_filter=int(weight[1] or 0) * group,
        num_group=group,
        no_bias=len(parts) == 1,
    )


POOLS = {"MaxPool": "max", "AveragePool": "avg", "LpPool": "lp"}


@imports(*POOLS)
def _(call: ImportCall) -> Symbol:
    kernel, kind = list(call.attr("kernel_shape")), POOLS[call.node.op_type]
    ones = [1] * len(kernel)
    strides, dilations = list(call.attr("strides", ones)), list(call.attr("dilations", ones))
    if dilations != ones:
        raise call.refuse(f"dilations: expected 1, got {dilations}")
    before, after = _padding(call, kernel, strides, dilations)
    counted = bool(call.attr("count_include_pad", 0))
    data = call.symbol(0)
    if before != after:
        if kind == "avg" and not counted:
            raise call.refuse(f"pads: expected {before} after too, as before, in a mean without them, got {after}")
        lowest = float(np.finfo(np.float32).min) if kind == "max" else 0.0
        data, before = _padded(call, before, after, lowest), [0] * len(kernel)
    return call.make(
        "Pooling",
        data,
        kernel=tuple(kernel),
        stride=tuple(strides),
        pad=tuple(before),
        pool_type=kind,
        pooling_convention="full" if call.attr("ceil_mode", 0) else "valid",
        count_include_pad=counted if kind == "avg" else None,
        p_value=call.attr("p", 2) if kind == "lp" else None,
    )


@imports("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def _(call: ImportCall) -> Symbol:
    kind = {"GlobalMaxPool": "max", "GlobalAveragePool": "avg", "GlobalLpPool": "lp"}[call.node.op_type]
    ones = (1,) * (call.rank(0) - 2)
    power = call.attr("p", 2) if kind == "lp" else None
    return call.make("Pooling", call.symbol(0), kernel=ones, pool_type=kind, global_pool=True, p_value=power)


@imports("MaxRoiPool")
def _(call: ImportCall) -> Symbol:
    return call.make(
        "ROIPooling",
        call.symbol(0),
        call.symbol(1),
        pooled_size=tuple(call.attr("pooled_shape")),
        spatial_scale=call.attr("spatial_scale", 1.0),
    )


@imports("BatchNormalization")
def _(call: ImportCall) -> Symbol:
    return call.make(
        "BatchNorm",
        *(call.symbol(i) for i in range(5)),
        eps=call.attr("epsilon", 1e-5),
        momentum=call.attr("momentum", 0.9),
        fix_gamma=False,
    )


@imports("InstanceNormalization")
def _(call: ImportCall) -> Symbol:
    return call.make("InstanceNorm", *(call.symbol(i) for i in range(3)), eps=call.attr("epsilon", 1e-5))


@imports("LayerNormalization")
def _(call: ImportCall) -> Symbol:
    rank = call.rank(0)
    if call.attr("axis", -1) % rank != rank - 1:
        raise call.refuse(f"axis: expected the last one, got {call.attr('axis')} of {rank}")
    parts = [call.symbol(0), call.symbol(1)]
    if call.has(2):
        parts.append(call.symbol(2))
    else:
        parts.append(call.parameter("beta", np.zeros_like(call.constant(1))))
    return call.make("LayerNorm", *parts, axis=-1, eps=call.attr("epsilon", 1e-5))


@imports("LRN")
def _(call: ImportCall) -> Symbol:
    return call.make(
        "LRN",
        call.symbol(0),
        nsize=call.attr("size"),
        alpha=call.attr("alpha", 1e-4),
        beta=call.attr("beta", 0.75),
        knorm=call.attr("bias", 1.0),
    )


@imports("Softmax", "LogSoftmax")
def _(call: ImportCall) -> Symbol:
    op = "softmax" if call.node.op_type == "Softmax" else "log_softmax"
    rank = call.rank(0)
    axis = call.attr("axis", -1 if call.graph.opset >= 13 else 1) % rank
    if call.graph.opset >= 13 or axis == rank - 1:
        return call.make(op, call.symbol(0), axis=axis)
    # Before opset 13 all axes from this one on were one.
    flat = call.step("Reshape", call.symbol(0), shape=(*[0] * axis, -1))
    return call.make("reshape_like", call.step(op, flat, axis=axis), call.symbol(0))
