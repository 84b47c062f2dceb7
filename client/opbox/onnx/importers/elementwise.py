"""Elementwise operators."""

from __future__ import annotations

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports

UNARY = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softsign": "softsign",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Abs": "abs",
    "Neg": "negative",
    "Reciprocal": "reciprocal",
    "Ceil": "ceil",
    "Floor": "floor",
    "Sign": "sign",
    "Erf": "erf",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asin": "arcsin",
    "Acos": "arccos",
    "Atan": "arctan",
    "Asinh": "arcsinh",
    "Acosh": "arccosh",
    "Atanh": "arctanh",
    "Not": "logical_not",
    "Identity": "_copy",
}
BINARY = {
    "Add": ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "Sub": ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "Div": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "Equal": ("broadcast_equal", "_equal_scalar", "_equal_scalar"),
    "Greater": ("broadcast_greater", "_greater_scalar", "_lesser_scalar"),
    "GreaterOrEqual": ("broadcast_greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"),
    "Less": ("broadcast_lesser", "_lesser_scalar", "_greater_scalar"),
    "LessOrEqual": ("broadcast_lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"),
    "And": ("broadcast_logical_and", "_logical_and_scalar", "_logical_and_scalar"),
    "Or": ("broadcast_logical_or", "_logical_or_scalar", "_logical_or_scalar"),
    "Xor": ("broadcast_logical_xor", "_logical_xor_scalar", "_logical_xor_scalar"),
}
"""The operator of two arrays, and those of an array and a number on its right and on its left."""
EXACT = 2**53
"""Largest integer that an operator's parameter holds exactly."""
LARGEST = float(np.finfo(np.float32).max)
"""Default bound of Clip before opset 11."""
MANY = {"Max": "broadcast_maximum", "Min": "broadcast_minimum", "Sum": "broadcast_add"}


@imports(*UNARY)
def _(call: ImportCall) -> Symbol:
    return call.make(UNARY[call.op_type], call.symbol(0))


@imports(*BINARY)
def _(call: ImportCall) -> Symbol:
    both, right, left = BINARY[call.op_type]
    for i, op in ((1, right), (0, left)):
        if _is_number(call, i) and len(call.constant(i).shape) <= max(call.rank(1 - i), 1):
            return call.make(op, call.symbol(1 - i), scalar=float(call.scalar(i)))
    return call.make(both, *call.aligned(0, 1))


def _is_number(call: ImportCall, i: int) -> bool:
    """Whether an input is a constant of one element, which a parameter can be."""
    return call.is_constant(i) and call.constant(i).size == 1 and abs(call.scalar(i)) <= EXACT


@imports("Pow")
def _(call: ImportCall) -> Symbol:
    """The result has the base's type, whatever the exponent's is."""
    base, exponent = call.dtype(0), call.dtype(1)
    if base == exponent or base is None or exponent is None:
        if _is_number(call, 1) and call.constant(1).ndim <= max(call.rank(0), 1):
            return call.make("_power_scalar", call.symbol(0), scalar=float(call.scalar(1)))
        return call.make("broadcast_power", *call.aligned(0, 1))
    wide = "float64" if "float64" in (base.name, exponent.name) else "float32"
    parts = [call.step("Cast", part, dtype=wide) for part in call.aligned(0, 1)]
    return call.make("Cast", call.step("broadcast_power", *parts), dtype=base.name)


@imports(*MANY)
def _(call: ImportCall) -> Symbol:
    return call.make("_copy", _chained(call, MANY[call.op_type]))


@imports("Mean")
def _(call: ImportCall) -> Symbol:
    return call.make("_div_scalar", _chained(call, "broadcast_add"), scalar=call.count)


def _chained(call: ImportCall, op: str) -> Symbol:
    """The operator on the first two inputs, on what comes of that and the third, and so on."""
    total, *others = call.aligned(*range(call.count))
    for other in others:
        total = call.step(op, total, other)
    return total


@imports("Mod")
def _(call: ImportCall) -> Symbol:
    if call.attr("fmod"):
        raise call.refuse("fmod: expected 0, got 1, whose remainder has the dividend's sign")
    left, right = call.aligned(0, 1)
    dtype = call.dtype(1)
    if dtype is not None and dtype.kind in "iu":
        return call.make("broadcast_mod", left, right)
    # What a float leaves by 0 is NaN in ONNX, and 0 in MXNet.
    divides = call.step("_not_equal_scalar", right, scalar=0)
    return call.make(
        "broadcast_add", call.step("broadcast_mod", left, right), call.step("_rdiv_scalar", divides, scalar=0)
    )


@imports("Round")
def _(call: ImportCall) -> Symbol:
    """ONNX rounds halves to even numbers; the distance to the number below says which way."""
    floor = call.step("floor", call.symbol(0))
    above = call.step("elemwise_sub", call.symbol(0), floor)
    pairs = call.step("_mul_scalar", call.step("floor", call.step("_mul_scalar", floor, scalar=0.5)), scalar=2)
    odd = call.step("elemwise_sub", floor, pairs)
    tied, further = (call.step(op, above, scalar=0.5) for op in ("_equal_scalar", "_greater_scalar"))
    return call.make("elemwise_add", floor, call.step("where", tied, odd, further))


@imports("Clip")
def _(call: ImportCall) -> Symbol:
    """Where the bounds cross, the upper one counts, as ONNX has it."""
    if any(call.has(i) and not call.is_constant(i) for i in (1, 2)):
        out = call.symbol(0)
        for i, op in ((1, "broadcast_maximum"), (2, "broadcast_minimum")):
            if call.has(i):
                out = call.step(op, out, call.widened(i, max(call.rank(0), 1)))
        return call.make("_copy", out)
    low, high = call.scalar(1, call.attr("min")), call.scalar(2, call.attr("max"))
    low, high = (None if bound is not None and abs(bound) == LARGEST else bound for bound in (low, high))
    if low is None or high is None:
        if low is None and high is None:
            return call.make("_copy", call.symbol(0))
        op, bound = ("_minimum_scalar", high) if low is None else ("_maximum_scalar", low)
        return call.make(op, call.symbol(0), scalar=bound)
    return call.make("clip", call.symbol(0), a_min=min(low, high), a_max=high)


@imports("LeakyRelu", "Elu")
def _(call: ImportCall) -> Symbol:
    kind = "elu" if call.op_type == "Elu" else "leaky"
    return call.make("LeakyReLU", call.symbol(0), act_type=kind, slope=call.attr("alpha"))


@imports("Selu")
def _(call: ImportCall) -> Symbol:
    return call.make("LeakyReLU", call.symbol(0), act_type="selu")


@imports("PRelu")
def _(call: ImportCall) -> Symbol:
    """MXNet's slopes are one for each channel; others, and those that are computed or fed, are used by the formula."""
    slope, rank = call.shape(1), call.rank(0)
    aligned = (*[1] * (rank - len(slope)), *slope)
    by_channel = rank > 1 and all(size == 1 for axis, size in enumerate(aligned) if axis != 1)
    if call.is_constant(1) and (by_channel or set(slope) <= {1}):
        values = call.graph.variable(call.input_name(1), call.constant(1).reshape(-1))
        return call.make("LeakyReLU", call.symbol(0), values, act_type="prelu")
    zero = call.step("_minimum_scalar", call.symbol(0), scalar=0)
    below = call.step("broadcast_mul", zero, call.widened(1, max(rank, 1)))
    return call.make("elemwise_add", call.step("relu", call.symbol(0)), below)


@imports("Gelu")
def _(call: ImportCall) -> Symbol:
    data, kind = call.symbol(0), call.attr("approximate")
    if kind == "none":
        return call.make("LeakyReLU", data, act_type="gelu")
    if kind != "tanh":
        raise call.refuse(f"approximate: expected none or tanh, got {kind}")
    cube = call.step("_mul_scalar", call.step("_power_scalar", data, scalar=3), scalar=0.044715)
    inner = call.step("_mul_scalar", call.step("elemwise_add", data, cube), scalar=(2 / np.pi) ** 0.5)
    gate = call.step("_plus_scalar", call.step("tanh", inner), scalar=1)
    return call.make("elemwise_mul", call.step("_mul_scalar", data, scalar=0.5), gate)


@imports("Softplus")
def _(call: ImportCall) -> Symbol:
    return call.make("Activation", call.symbol(0), act_type="softrelu")


@imports("HardSigmoid")
def _(call: ImportCall) -> Symbol:
    return call.make("hard_sigmoid", call.symbol(0), alpha=call.attr("alpha"), beta=call.attr("beta"))


@imports("HardSwish")
def _(call: ImportCall) -> Symbol:
    gate = call.step("hard_sigmoid", call.symbol(0), alpha=1 / 6, beta=0.5)
    return call.make("elemwise_mul", call.symbol(0), gate)


@imports("Dropout")
def _(call: ImportCall) -> list[Symbol]:
    """Nothing is dropped in inference, which the second output says; what is left is not scaled either."""
    if call.scalar(2, False) and call.scalar(1, 0.5):
        raise call.refuse("training_mode: expected False, got True: export the model for inference")
    call.without_effect("ratio", "seed", inputs=[1])
    data = call.make("_copy", call.symbol(0))
    return [data, call.step("ones_like", call.symbol(0))] if len(call.outputs) > 1 else [data]


@imports("Cast")
def _(call: ImportCall) -> Symbol:
    from onnx import helper

    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(call.attr("to")))
    if dtype == np.bool_:  # truths are numbers here
        return call.make("_not_equal_scalar", call.symbol(0), scalar=0)
    call.without_effect("saturate")  # of types of 8 bits, which MXNet has not
    return call.make("Cast", call.symbol(0), dtype=dtype.name)


@imports("Where")
def _(call: ImportCall) -> Symbol:
    """MXNet's where broadcasts nothing."""
    shapes = [call.shape(i) for i in range(3)]
    if len(set(shapes)) == 1:
        return call.make("where", *(call.symbol(i) for i in range(3)))
    parts = call.aligned(0, 1, 2)
    if not any(None in shape for shape in shapes):
        sizes = np.broadcast_shapes(*(call.known_shape(i) for i in range(3)))
        return call.make("where", *(call.step("broadcast_to", part, shape=sizes) for part in parts))
    zeros = [call.step("zeros_like", call.step("Cast", part, dtype="float32")) for part in parts]
    whole = call.step("broadcast_add", call.step("broadcast_add", zeros[0], zeros[1]), zeros[2])
    return call.make("where", *(call.step("broadcast_like", part, whole) for part in parts))


@imports("IsNaN")
def _(call: ImportCall) -> Symbol:
    return call.make("_not_equal", call.symbol(0), call.symbol(0))
