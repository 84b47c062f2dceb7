"""Elementwise operators: of one array, of two, of an array and a number."""

from __future__ import annotations

import math

import numpy as np

from ..exporting import ExportCall, exports, refuse

UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softsign": "Softsign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "negative": "Neg",
    "reciprocal": "Reciprocal",
    "ceil": "Ceil",
    "floor": "Floor",
    "sign": "Sign",
    "erf": "Erf",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
}
ARITHMETIC = {
    "elemwise_add": "Add",
    "_grad_add": "Add",
    "broadcast_add": "Add",
    "elemwise_sub": "Sub",
    "broadcast_sub": "Sub",
    "elemwise_mul": "Mul",
    "broadcast_mul": "Mul",
    "elemwise_div": "Div",
    "broadcast_div": "Div",
    "_power": "Pow",
    "broadcast_power": "Pow",
    "_maximum": "Max",
    "broadcast_maximum": "Max",
    "_minimum": "Min",
    "broadcast_minimum": "Min",
}
COMPARISONS = {
    "equal": ("Equal", False),
    "not_equal": ("Equal", True),
    "greater": ("Greater", False),
    "greater_equal": ("GreaterOrEqual", False),
    "lesser": ("Less", False),
    "lesser_equal": ("LessOrEqual", False),
}
LOGIC = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
SCALAR = {
    "_plus_scalar": ("Add", False),
    "_minus_scalar": ("Sub", False),
    "_rminus_scalar": ("Sub", True),
    "_mul_scalar": ("Mul", False),
    "_div_scalar": ("Div", False),
    "_rdiv_scalar": ("Div", True),
    "_power_scalar": ("Pow", False),
    "_rpower_scalar": ("Pow", True),
    "_maximum_scalar": ("Max", False),
    "_minimum_scalar": ("Min", False),
}
FACTORS = {"log2": 1 / math.log(2), "log10": 1 / math.log(10)}


def _name(call: ExportCall) -> str:
    return call.node.op.name if call.node.op is not None else ""


@exports(*UNARY)
def _(call: ExportCall) -> str:
    op_type, wanted = UNARY[_name(call)], call.out_dtypes[0]
    if wanted.kind == "f" or op_type in ("Abs", "Neg", "Sign"):
        return call.emit(op_type, call.as_type(call.inputs[0], call.dtypes[0], wanted))
    return call.cast(call.emit(op_type, call.cast(call.inputs[0], np.float32)), wanted)  # of floats only, in ONNX


@exports(*ARITHMETIC)
def _(call: ExportCall) -> str:
    return call.emit(ARITHMETIC[_name(call)], *call.inputs)


@exports(*(prefix + name for name in COMPARISONS for prefix in ("_", "broadcast_")))
def _(call: ExportCall) -> str:
    return _compared(call, _name(call).removeprefix("broadcast").lstrip("_"), *call.inputs)


@exports(*(f"_{name}_scalar" for name in COMPARISONS))
def _(call: ExportCall) -> str:
    data = call.as_type(call.inputs[0], call.dtypes[0], call.out_dtypes[0])
    name = _name(call).removeprefix("_").removesuffix("_scalar")
    return _compared(call, name, data, call.constant(call.attr("scalar")))


def _compared(call: ExportCall, name: str, left: str, right: str) -> str:
    op_type, negated = COMPARISONS[name]
    answer = call.emit(op_type, left, right)
    return call.cast(call.emit("Not", answer) if negated else answer, call.out_dtypes[0])


@exports(*(prefix + name for name in LOGIC for prefix in ("_", "broadcast_")))
def _(call: ExportCall) -> str:
    name = _name(call).removeprefix("broadcast").lstrip("_")
    truths = [call.cast(value, np.bool_) for value in call.inputs]
    return call.cast(call.emit(LOGIC[name], *truths), call.out_dtypes[0])


@exports(*(f"_{name}_scalar" for name in LOGIC))
def _(call: ExportCall) -> str:
    name = _name(call).removeprefix("_").removesuffix("_scalar")
    scalar = call.constant(bool(call.attr("scalar")), np.bool_)
    return call.cast(call.emit(LOGIC[name], call.cast(call.inputs[0], np.bool_), scalar), call.out_dtypes[0])


@exports("logical_not")
def _(call: ExportCall) -> str:
    return call.cast(call.emit("Not", call.cast(call.inputs[0], np.bool_)), call.out_dtypes[0])


@exports(*SCALAR)
def _(call: ExportCall) -> str:
    op_type, swapped = SCALAR[_name(call)]
    data = call.as_type(call.inputs[0], call.dtypes[0], call.out_dtypes[0])
    operands = [data, call.constant(call.attr("scalar"))]
    return call.emit(op_type, *reversed(operands) if swapped else operands)


@exports("broadcast_mod", "_mod", "_mod_scalar", "_rmod_scalar")
def _(call: ExportCall) -> str:
    """MXNet's remainder has the divisor's sign, ONNX's of floats (fmod) the dividend's."""
    operands = [call.as_type(v, t, call.out_dtypes[0]) for v, t in zip(call.inputs, call.dtypes, strict=True)]
    if len(operands) == 1:
        operands.append(call.constant(call.attr("scalar")))
    left, right = reversed(operands) if _name(call) == "_rmod_scalar" else operands
    if call.out_dtypes[0].kind != "f":
        return call.emit("Mod", left, right)
    whole = call.emit("Floor", call.emit("Div", left, right))
    return call.emit("Sub", left, call.emit("Mul", whole, right))


@exports("broadcast_hypot", "_hypot", "_hypot_scalar")
def _(call: ExportCall) -> str:
    operands = [call.as_type(v, t, call.out_dtypes[0]) for v, t in zip(call.inputs, call.dtypes, strict=True)]
    if len(operands) == 1:
        operands.append(call.constant(call.attr("scalar")))
    squares = [call.emit("Mul", value, value) for value in operands]
    return call.emit("Sqrt", call.emit("Add", *squares))


@exports("square")
def _(call: ExportCall) -> str:
    return call.emit("Mul", call.inputs[0], call.inputs[0])


@exports("rsqrt")
def _(call: ExportCall) -> str:
    return call.emit("Reciprocal", call.emit("Sqrt", call.inputs[0]))


@exports("cbrt", "rcbrt")
def _(call: ExportCall) -> str:
    data = call.inputs[0]
    root = call.emit("Pow", call.emit("Abs", data), call.constant(1 / 3))
    root = call.emit("Mul", call.emit("Sign", data), root)
    return call.emit("Reciprocal", root) if _name(call) == "rcbrt" else root


@exports(*FACTORS)
def _(call: ExportCall) -> str:
    return call.emit("Mul", call.emit("Log", call.inputs[0]), call.constant(FACTORS[_name(call)]))


@exports("log1p")
def _(call: ExportCall) -> str:
    return call.emit("Log", call.emit("Add", call.inputs[0], call.constant(1)))


@exports("expm1")
def _(call: ExportCall) -> str:
    return call.emit("Sub", call.emit("Exp", call.inputs[0]), call.constant(1))


@exports("degrees", "radians")
def _(call: ExportCall) -> str:
    return call.emit("Mul", call.inputs[0], call.constant(180 / math.pi if _name(call) == "degrees" else math.pi / 180))


@exports("trunc", "fix")
def _(call: ExportCall) -> str:
    size = call.emit("Floor", call.emit("Abs", call.inputs[0]))
    return call.emit("Mul", call.emit("Sign", call.inputs[0]), size)


@exports("round")
def _(call: ExportCall) -> str:
    """MXNet rounds halves away from zero, ONNX to even ones."""
    size = call.emit("Floor", call.emit("Add", call.emit("Abs", call.inputs[0]), call.constant(0.5)))
    return call.emit("Mul", call.emit("Sign", call.inputs[0]), size)


@exports("rint")
def _(call: ExportCall) -> str:
    """MXNet's rint takes a half down."""
    return call.emit("Ceil", call.emit("Sub", call.inputs[0], call.constant(0.5)))


@exports("clip")
def _(call: ExportCall) -> str:
    bounds = [call.attr("a_min"), call.attr("a_max")]
    if bounds[0] > bounds[1]:
        raise refuse(call, f"expected a_min of at most a_max, got {bounds[0]} and {bounds[1]}")
    if call.out_dtypes[0].kind in "iu":
        limits = np.iinfo(call.out_dtypes[0])
        bounds = [min(max(bound, limits.min), limits.max) for bound in bounds]
    return call.emit("Clip", call.inputs[0], *map(call.constant, bounds))


@exports("hard_sigmoid")
def _(call: ExportCall) -> str:
    return call.emit("HardSigmoid", call.inputs[0], alpha=float(call.attr("alpha")), beta=float(call.attr("beta")))


@exports("smooth_l1")
def _(call: ExportCall) -> str:
    square = float(call.attr("scalar")) ** 2
    size = call.emit("Abs", call.inputs[0])
    inner = call.emit("Mul", call.emit("Mul", size, size), call.constant(square / 2))
    outer = call.emit("Sub", size, call.constant(0.5 / square))
    return call.emit("Where", call.emit("Less", size, call.constant(1 / square)), inner, outer)


@exports("add_n")
def _(call: ExportCall) -> str:
    return call.emit("Sum", *call.inputs)


@exports("Cast", "amp_cast")
def _(call: ExportCall) -> str:
    data = call.inputs[0]
    if call.dtypes[0].kind == "f" and call.out_dtypes[0].kind == "b":
        raise refuse(call, "expected a type of numbers, got bool: compare with 0 instead")
    return call.cast(data, call.out_dtypes[0])


@exports("where")
def _(call: ExportCall) -> str:
    condition = call.cast(call.inputs[0], np.bool_)
    if call.shapes[0] != call.shapes[1] and call.shapes[0][0] == call.shapes[1][0]:  # one truth for each row
        condition = call.emit("Reshape", condition, call.ints([-1, *[1] * (len(call.shapes[1]) - 1)]))
    return call.emit("Where", condition, *call.inputs[1:])
