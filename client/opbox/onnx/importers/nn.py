"""Layers: products, convolutions, normalizations, softmax."""

from __future__ import annotations

import numpy as np

from ...symbol import Symbol
from ..importing import Array, ImportCall, imports
from .padding import padded, padding


@imports("Gemm")
def _(call: ImportCall) -> Symbol:
    alpha, beta, transposed = call.attr("alpha"), call.attr("beta"), bool(call.attr("transB"))
    data = call.symbol(0)
    if call.attr("transA"):
        data = call.step("transpose", data)
    if alpha == beta == 1 and call.is_constant(1) and (not call.has(2) or call.is_constant(2)):
        weight, bias = call.constant(1), call.constant(2) if call.has(2) else None
        width = weight.shape[0] if transposed else weight.shape[1]
        if bias is None or bias.shape in ((), (1,), (width,), (1, 1), (1, width)):
            return _dense(call, data, width, transposed, None if bias is None else bias.reshape(-1))
    right = call.symbol(1)
    out = call.step("dot", data, right, transpose_b=transposed)
    if alpha != 1:
        out = call.step("_mul_scalar", out, scalar=alpha)
    if not call.has(2):
        return call.make("_copy", out)
    return call.make("broadcast_add", out, call.step("_mul_scalar", call.widened(2, 2), scalar=beta))


def _dense(call: ImportCall, data: Symbol, width: int, transposed: bool, bias: Array | None) -> Symbol:
    """FullyConnected, with the parameters under the names that they have in the model."""
    if transposed:
        parts = [data, call.symbol(1)]
    else:
        parts = [data, call.graph.variable(f"{call.input_name(1)}_transposed", call.constant(1).T.copy())]
    if bias is not None:
        parts.append(call.graph.variable(call.input_name(2), np.broadcast_to(bias, (width,)).copy()))
    return call.make("FullyConnected", *parts, num_hidden=width, no_bias=bias is None)


@imports("MatMul")
def _(call: ImportCall) -> Symbol:
    left, right = call.rank(0), call.rank(1)
    if right == 2 or left == right == 1 or (left == 2 and right == 1):
        return call.make("dot", call.symbol(0), call.symbol(1))
    if left == right and call.shape(0)[:-2] == call.shape(1)[:-2]:
        return call.make("batch_dot" if left == 3 else "_linalg_gemm2", call.symbol(0), call.symbol(1))
    if min(left, right) < 2:
        raise call.refuse(f"expected matrices, or stacks of them, got {left} and {right} dimensions")
    stacks = np.broadcast_shapes(*(call.known(call.shape(i)[:-2], f"input {i}") for i in (0, 1)))
    parts = [
        call.step("broadcast_to", call.widened(i, len(stacks) + 2), shape=(*stacks, 0, 0)) for i in (0, 1)
    ]  # 0 is the size that is there
    return call.make("batch_dot" if len(stacks) == 1 else "_linalg_gemm2", *parts)


def _filter(call: ImportCall) -> tuple[tuple[int, ...], list[int], list[int], list[int]]:
    """The weight's shape, and kernel, strides and dilations of a convolution."""
    weight = call.known_shape(1)
    kernel = list(weight[2:])
    if call.attr("kernel_shape", kernel) != kernel:
        raise call.refuse(f"kernel_shape: expected {kernel}, as W has it, got {call.attr('kernel_shape')}")
    strides, dilations = (list(call.attr(key, [1] * len(kernel))) for key in ("strides", "dilations"))
    return weight, kernel, strides, dilations


@imports("Conv")
def _(call: ImportCall) -> Symbol:
    weight, kernel, strides, dilations = _filter(call)
    before, after = padding(call, kernel, strides, dilations)
    data = call.symbol(0)
    if before != after:
        data, before = padded(call, data, before, after, 0.0), [0] * len(kernel)
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
        num_group=call.attr("group"),
        no_bias=len(parts) == 1,
    )


@imports("ConvTranspose")
def _(call: ImportCall) -> Symbol:
    weight, kernel, strides, dilations = _filter(call)
    if call.attr("auto_pad") != "NOTSET" or call.attr("output_shape"):
        raise call.refuse("expected explicit pads, got auto_pad or output_shape")
    before, after = padding(call, kernel, strides, dilations)
    if before != after:
        raise call.refuse(f"pads: expected the same before and after, got {before} and {after}")
    group, parts = call.attr("group"), [call.symbol(i) for i in range(1, call.count) if call.has(i)]
    return call.make(
        "Deconvolution",
        call.symbol(0),
        *parts,
        kernel=tuple(kernel),
        stride=tuple(strides),
        dilate=tuple(dilations),
        pad=tuple(before),
        adj=tuple(call.attr("output_padding", [0] * len(kernel))),
        num_filter=weight[1] * group,
        num_group=group,
        no_bias=len(parts) == 1,
    )


@imports("BatchNormalization")
def _(call: ImportCall) -> Symbol:
    return call.make(
        "BatchNorm",
        *(call.symbol(i) for i in range(5)),
        eps=call.attr("epsilon"),
        momentum=call.attr("momentum"),
        fix_gamma=False,
    )


@imports("InstanceNormalization")
def _(call: ImportCall) -> Symbol:
    return call.make("InstanceNorm", *(call.symbol(i) for i in range(3)), eps=call.attr("epsilon"))


@imports("LayerNormalization")
def _(call: ImportCall) -> Symbol:
    rank = call.rank(0)
    if call.axis() != rank - 1:
        raise call.refuse(f"axis: expected the last one, got {call.attr('axis')} of {rank}")
    beta = call.symbol(2) if call.has(2) else call.step("zeros_like", call.symbol(1))
    return call.make("LayerNorm", call.symbol(0), call.symbol(1), beta, axis=-1, eps=call.attr("epsilon"))


@imports("LRN")
def _(call: ImportCall) -> Symbol:
    return call.make(
        "LRN",
        call.symbol(0),
        nsize=call.attr("size"),
        alpha=call.attr("alpha"),
        beta=call.attr("beta"),
        knorm=call.attr("bias"),
    )


@imports("Softmax", "LogSoftmax")
def _(call: ImportCall) -> Symbol:
    op = "softmax" if call.op_type == "Softmax" else "log_softmax"
    rank, axis = call.rank(0), call.axis()
    if call.graph.opset >= 13 or axis == rank - 1:
        return call.make(op, call.symbol(0), axis=axis)
    # Before opset 13 all axes from this one on were one.
    flat = call.step("Reshape", call.symbol(0), shape=(*[0] * axis, -1))
    return call.make("reshape_like", call.step(op, flat, axis=axis), call.symbol(0))
