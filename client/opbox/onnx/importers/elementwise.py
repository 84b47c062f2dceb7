"""Elementwise operators."""

from __future__ import annotations

from typing import Any

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
    "Dropout": "_copy",
}
BINARY = {
    "Add": ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "Sub": ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "Div": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "Pow": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
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
MANY = {"Max": "broadcast_maximum", "Min": "broadcast_minimum", "Sum": "broadcast_add"}


@imports(*UNARY)
def _(call: ImportCall) -> Symbol:
    return call.make(UNARY[call.node.op_type], call.symbol(0))


@imports(*BINARY)
def _(call: ImportCall) -> Symbol:
    both, right, left = BINARY[call.node.op_type]
    for i, op in ((1, right), (0, left)):
        if call.is_constant(i) and call.constant(i).size == 1 and call.constant(i).ndim <= call.rank(1 - i):
            return call.make(op, call.symbol(1 - i), scalar=float(call.scalar(i)))
    return call.make(both, *_aligned(call, [call.symbol(0), call.symbol(1)]))


def _aligned(call: ImportCall, symbols: list[Symbol]) -> list[Symbol]:
    """The operands with as many dimensions each, as MXNet's broadcasting asks for."""
    ranks = [max(call.rank(i), 1) for i in range(len(symbols))]
    most = max(ranks)
    return [
        symbol if rank == most else call.step("Reshape", symbol, shape=(*[1] * (most - rank), *_same(call, i)))
        for i, (symbol, rank) in enumerate(zip(symbols, ranks, strict=True))
    ]


def _same(call: ImportCall, i: int) -> list[int]:
    """The shape of an input as Reshape takes it behind further dimensions: one size may be unknown."""
    sizes = [-1 if size is None else size for size in call.shape(i)] or [1]
    if sizes.count(-1) > 1:
        raise call.refuse(f"expected input {i} with at most one unknown size to broadcast, got {call.shape(i)}")
    return sizes


@imports(*MANY)
def _(call: ImportCall) -> Symbol:
    symbols = _aligned(call, [call.symbol(i) for i in range(call.count)])
    total = symbols[0]
    for symbol in symbols[1:]:
        total = call.step(MANY[call.node.op_type], total, symbol)
    return call.make("_copy", total)


@imports("Mean")
def _(call: ImportCall) -> Symbol:
    symbols = _aligned(call, [call.symbol(i) for i in range(call.count)])
    total = symbols[0]
    for symbol in symbols[1:]:
        total = call.step("broadcast_add", total, symbol)
    return call.make("_div_scalar", total, scalar=len(symbols))


@imports("Mod")
def _(call: ImportCall) -> Symbol:
    if call.attr("fmod", 0):
        raise call.refuse("fmod: expected 0, got 1, whose remainder has the dividend's sign")
    return call.make("broadcast_mod", *_aligned(call, [call.symbol(0), call.symbol(1)]))


@imports("Round")
def _(call: ImportCall) -> Symbol:
    """ONNX rounds halves to even numbers: x - 0.5 rounded up, unless that is odd and x a half."""
    up = call.step("floor", call.step("_plus_scalar", call.symbol(0), scalar=0.5))
    down = call.step("ceil", call.step("_minus_scalar", call.symbol(0), scalar=0.5))
    half = call.step("_mul_scalar", call.step("elemwise_add", up, down), scalar=0.5)
    even = call.step("_mul_scalar", call.step("round", call.step("_mul_scalar", half, scalar=0.5)), scalar=2)
    tied = call.step("elemwise_sub", up, down)
    return call.make("where", tied, even, up)


@imports("Clip")
def _(call: ImportCall) -> Symbol:
    low = call.scalar(1, call.attr("min", -np.finfo(np.float32).max.item()))
    high = call.scalar(2, call.attr("max", np.finfo(np.float32).max.item()))
    return call.make("clip", call.symbol(0), a_min=low, a_max=high)


@imports("LeakyRelu", "Elu")
def _(call: ImportCall) -> Symbol:
    kind, slope = ("elu", 1.0) if call.node.op_type == "Elu" else ("leaky", 0.01)
    return call.make("LeakyReLU", call.symbol(0), act_type=kind, slope=call.attr("alpha", slope))


@imports("Selu")
def _(call: ImportCall) -> Symbol:
    if "alpha" in call.attrs or "gamma" in call.attrs:
        raise call.refuse("expected the default alpha and gamma, got others")
    return call.make("LeakyReLU", call.symbol(0), act_type="selu")


@imports("PRelu")
def _(call: ImportCall) -> Symbol:
    if not call.is_constant(1):
        return _leaky(call)
    slope = call.constant(1)
    if slope.size not in (1, *slope.shape[:1]):
        raise call.refuse(f"expected one slope or one for each channel, got {slope.shape}")
    values = call.graph.variable(call.node.input[1], slope.reshape(-1))
    return call.make("LeakyReLU", call.symbol(0), values, act_type="prelu")


def _leaky(call: ImportCall) -> Symbol:
    """PRelu by its formula, where the slope is computed or fed."""
    zero = call.step("_minimum_scalar", call.symbol(0), scalar=0)
    below = call.step("broadcast_mul", *_aligned(call, [zero, call.symbol(1)]))
    return call.make("elemwise_add", call.step("relu", call.symbol(0)), below)


@imports("Gelu")
def _(call: ImportCall) -> Symbol:
    if call.attr("approximate", "none") != "none":
        raise call.refuse(f"approximate: expected none, got {call.attr('approximate')}")
    return call.make("LeakyReLU", call.symbol(0), act_type="gelu")


@imports("Softplus")
def _(call: ImportCall) -> Symbol:
    return call.make("Activation", call.symbol(0), act_type="softrelu")


@imports("HardSigmoid")
def _(call: ImportCall) -> Symbol:
    return call.make("hard_sigmoid", call.symbol(0), alpha=call.attr("alpha", 0.2), beta=call.attr("beta", 0.5))


@imports("HardSwish")
def _(call: ImportCall) -> Symbol:
    gate = call.step("hard_sigmoid", call.symbol(0), alpha=1 / 6, beta=0.5)
    return call.make("elemwise_mul", call.symbol(0), gate)


@imports("Cast")
def _(call: ImportCall) -> Symbol:
    from onnx import helper

    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(call.attr("to")))
    if dtype == np.bool_:  # truths are numbers here
        return call.make("_not_equal_scalar", call.symbol(0), scalar=0)
    return call.make("Cast", call.symbol(0), dtype=dtype.name)


@imports("Where")
def _(call: ImportCall) -> Symbol:
    parts: list[Any] = [call.symbol(i) for i in range(3)]
    ranks = [call.rank(i) for i in range(3)]
    if len({call.shape(i) for i in range(3)}) == 1:
        return call.make("where", *parts)
    if max(ranks) == 0:
        raise call.refuse("expected arrays with dimensions, got scalars")
    parts = _aligned(call, parts)
    largest = max(range(3), key=lambda i: (ranks[i], np.prod([size or 1 for size in call.shape(i)])))
    wide = [part if i == largest else call.step("broadcast_like", part, parts[largest]) for i, part in enumerate(parts)]
    return call.make("where", *wide)


@imports("IsNaN")
def _(call: ImportCall) -> Symbol:
    return call.make("_not_equal", call.symbol(0), call.symbol(0))
