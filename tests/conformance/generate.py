"""Random rows of the operator table: shapes and parameters drawn by family, valid most of the time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.cases.case import Arg, Case

__all__ = ["FAMILIES"]

Make = Callable[[Random], Case]
FAMILIES: dict[str, Make] = {}


def family(make: Make) -> Make:
    """Register a generator under its function's name."""
    FAMILIES[make.__name__] = make
    return make


def dims(rng: Random, ndim: int, low: int = 1, high: int = 5) -> tuple[int, ...]:
    return tuple(rng.randint(low, high) for _ in range(ndim))


def signed_axis(rng: Random, ndim: int) -> int:
    return rng.randint(-ndim, ndim - 1)


def row(op: str, inputs: dict[str, Any], attrs: dict[str, Any], **more: Any) -> Case:
    return Case(op, inputs, attrs, ("float32",), **more)


@family
def convolution(rng: Random) -> Case:
    n = rng.choice([1, 2, 2, 2, 3])
    group = rng.choice([1, 1, 1, 2, 3])
    channels, filters = group * rng.randint(1, 3), group * rng.randint(1, 3)
    kernel = dims(rng, n, 1, 3)
    attrs: dict[str, Any] = {"kernel": kernel, "num_filter": filters, "num_group": group}
    if rng.random() < 0.7:
        attrs["stride"] = dims(rng, n, 1, 3)
    if rng.random() < 0.6:
        attrs["pad"] = dims(rng, n, 0, 2)
    if rng.random() < 0.4:
        attrs["dilate"] = dims(rng, n, 1, 2)
    inputs = {
        "data": (rng.randint(1, 3), channels, *dims(rng, n, 3, 8)),
        "weight": (filters, channels // group, *kernel),
    }
    if rng.random() < 0.5:
        attrs["no_bias"] = True
    else:
        inputs["bias"] = (filters,)
    return row("Convolution", inputs, attrs, rtol=1e-4, atol=1e-5, why="sums of up to 81 products, in any order")


@family
def pooling(rng: Random) -> Case:
    n = rng.choice([1, 2, 2, 2, 3])
    pool_type = rng.choice(["max", "max", "avg", "sum"])
    attrs: dict[str, Any] = {"pool_type": pool_type, "kernel": dims(rng, n, 1, 4)}
    if rng.random() < 0.7:
        attrs["stride"] = dims(rng, n, 1, 3)
    if rng.random() < 0.5:
        attrs["pad"] = tuple(rng.randint(0, k // 2) for k in attrs["kernel"])
    if rng.random() < 0.2:
        attrs["global_pool"] = True
    # Average pooling in the convention "full" differs (docs/differences.md).
    if pool_type != "avg" and rng.random() < 0.4:
        attrs["pooling_convention"] = "full"
    if pool_type == "avg" and rng.random() < 0.5:
        attrs["count_include_pad"] = rng.choice([True, False])
    shape = (rng.randint(1, 3), rng.randint(1, 3), *dims(rng, n, 2, 8))
    return row("Pooling", {"data": Arg(shape, kind="distinct", low=-2, high=2)}, attrs)


@family
def fully_connected(rng: Random) -> Case:
    flatten, hidden = rng.random() < 0.6, rng.randint(1, 6)
    shape = dims(rng, rng.randint(1 if rng.random() < 0.1 else 2, 4))
    width = shape[-1]
    if flatten:
        width = 1
        for d in shape[1:]:
            width *= d
    attrs: dict[str, Any] = {"num_hidden": hidden, "flatten": flatten}
    inputs = {"data": shape, "weight": (hidden, width)}
    if rng.random() < 0.5:
        attrs["no_bias"] = True
    else:
        inputs["bias"] = (hidden,)
    return row("FullyConnected", inputs, attrs, rtol=1e-4, atol=1e-5, why="sums of up to 125 products")


@family
def reshape(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 5), 1, 6)
    codes: list[int] = []
    at, inferred = 0, False
    while at < len(shape):
        left = len(shape) - at
        code = rng.choice([0, 0, 0, -1, -2, -3, -4, shape[at]])
        if code == -2:
            codes.append(-2)
            at = len(shape)
        elif code == -3 and left >= 2:
            codes.append(-3)
            at += 2
        elif code == -4:
            first = rng.choice([d for d in range(1, shape[at] + 1) if shape[at] % d == 0])
            codes += [-4, *rng.choice([(first, shape[at] // first), (-1, shape[at] // first), (first, -1)])]
            at += 1
        # After -2, -3 or -4 MXNet puts what it infers for -1 into the wrong place (docs/differences.md).
        elif code == -1 and not inferred and min(codes, default=0) >= -1:
            codes.append(-1)
            inferred = True
            at += rng.randint(1, left)
        else:
            codes.append(shape[at] if code not in (0, shape[at]) else code)
            at += 1
    attrs: dict[str, Any] = {"shape": tuple(codes)}
    # MXNet reads -2 from the left even so, and -4 not at all; it takes shapes that do not fit.
    if rng.random() < 0.3 and min(codes) > -2:
        attrs["reverse"] = True
    elif rng.random() < 0.2:
        attrs["shape"] = (*codes, 1)
    return row("Reshape", {"data": shape}, attrs)


@family
def broadcasting(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 5))
    left = tuple(1 if rng.random() < 0.3 else d for d in shape)
    right = tuple(1 if rng.random() < 0.3 else d for d in shape)
    if rng.random() < 0.1:
        right = (*right[:-1], right[-1] + 1)
    name = rng.choice(
        ["add", "sub", "mul", "div", "maximum", "minimum", "hypot", "power", "greater", "not_equal", "logical_and"]
    )
    low = 0.5 if name in ("div", "power") else -1.0
    grad = name not in ("greater", "not_equal", "logical_and")
    inputs = {"lhs": Arg(left, low, 2.0), "rhs": Arg(right, low, 1.75)}
    return row(f"broadcast_{name}", inputs, {}, grad=grad)


@family
def broadcast_to(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 5))
    source = tuple(1 if rng.random() < 0.5 else d for d in shape)
    if rng.random() < 0.5:
        target = tuple(0 if s == d and rng.random() < 0.5 else d for s, d in zip(source, shape, strict=True))
        return row("broadcast_to", {"data": source}, {"shape": target})
    axes = [i for i, (s, d) in enumerate(zip(source, shape, strict=True)) if s == 1]
    return row("broadcast_axis", {"data": source}, {"axis": tuple(axes), "size": tuple(shape[a] for a in axes)})


@family
def reduction(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 5))
    name = rng.choice(["sum", "mean", "max", "min", "prod", "nansum", "nanprod", "norm"])
    attrs: dict[str, Any] = {}
    axes = sorted(rng.sample(range(len(shape)), rng.randint(0, len(shape))))
    if rng.random() < 0.7:
        attrs["axis"] = tuple(a - len(shape) if rng.random() < 0.3 else a for a in axes)
        if name == "norm":
            attrs["axis"] = attrs["axis"][:2] or None
            attrs["ord"] = rng.choice([1, 2])
    if rng.random() < 0.5:
        attrs["keepdims"] = True
    if name != "norm" and rng.random() < 0.3:
        attrs["exclude"] = True
    arg = Arg(shape, kind="distinct", low=0.25, high=2.0) if name != "sum" else Arg(shape)
    return row(name, {"data": arg}, attrs, rtol=1e-4, atol=1e-5, why="sums of up to 3125 numbers")


@family
def arg_reduction(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 4))
    attrs: dict[str, Any] = {"keepdims": rng.random() < 0.5}
    if rng.random() < 0.8:
        attrs["axis"] = signed_axis(rng, len(shape))
    return row(rng.choice(["argmax", "argmin"]), {"data": Arg(shape, kind="distinct")}, attrs, grad=False)


@family
def slicing(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 4), 1, 7)
    if rng.random() < 0.3:
        axis = signed_axis(rng, len(shape))
        begin = rng.randint(-shape[axis], shape[axis] - 1)
        end = rng.choice([None, rng.randint(-shape[axis], shape[axis])])
        return row("slice_axis", {"data": shape}, {"axis": axis, "begin": begin, "end": end})
    count = rng.randint(1, len(shape))
    begin_end_step: list[tuple[Any, Any, Any]] = []
    for d in shape[:count]:
        step = rng.choice([1, 1, 2, 3, -1, -2])
        low, high = sorted((rng.randint(0, d), rng.randint(0, d)))
        begin, end = (low, high) if step > 0 else (high, low - 1 if low else None)
        if rng.random() < 0.2:
            begin = None
        if rng.random() < 0.2:
            end = None
        if begin is not None and rng.random() < 0.2 and begin:
            begin -= d
        begin_end_step.append((begin, end, step))
    begins, ends, steps = zip(*begin_end_step, strict=True)
    attrs: dict[str, Any] = {"begin": begins, "end": ends}
    if any(step != 1 for step in steps) or rng.random() < 0.3:
        attrs["step"] = steps
    return row("slice", {"data": shape}, attrs)


@family
def concat(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 4))
    axis, count = signed_axis(rng, len(shape)), rng.randint(1, 4)
    inputs = {}
    for i in range(count):
        sizes = list(shape)
        sizes[axis] = rng.randint(1, 4)
        inputs[f"arg{i}"] = tuple(sizes)
    return row("Concat", inputs, {"num_args": count, "dim": axis})


@family
def split(rng: Random) -> Case:
    shape = list(dims(rng, rng.randint(1, 4)))
    axis, count = signed_axis(rng, len(shape)), rng.randint(1, 4)
    squeeze = rng.random() < 0.3
    shape[axis] = count if squeeze else count * rng.randint(1, 3)
    return row("SliceChannel", {"data": tuple(shape)}, {"num_outputs": count, "axis": axis, "squeeze_axis": squeeze})


@family
def transposing(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 5))
    if rng.random() < 0.3 and len(shape) > 1:
        one, two = rng.sample(range(len(shape)), 2)
        return row("SwapAxis", {"data": shape}, {"dim1": one, "dim2": two})
    axes = list(range(len(shape)))
    rng.shuffle(axes)
    return row("transpose", {"data": shape}, {"axes": tuple(axes)} if rng.random() < 0.8 else {})


@family
def tiling(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 3))
    if rng.random() < 0.5:
        return row("tile", {"data": shape}, {"reps": dims(rng, rng.randint(1, 3), 1, 3)})
    attrs: dict[str, Any] = {"repeats": rng.randint(1, 3)}
    if rng.random() < 0.7:
        attrs["axis"] = signed_axis(rng, len(shape))
    return row("repeat", {"data": shape}, attrs)


@family
def taking(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 3))
    axis = signed_axis(rng, len(shape))
    places = Arg(dims(rng, rng.randint(1, 3)), -3, 7, kind="int", grad=False)
    return row("take", {"a": shape, "indices": places}, {"axis": axis, "mode": rng.choice(["clip", "wrap"])})


@family
def products(rng: Random) -> Case:
    a, b = rng.random() < 0.5, rng.random() < 0.5
    n, k, m = dims(rng, 3)
    left, right = ((k, n) if a else (n, k)), ((m, k) if b else (k, m))
    attrs = {"transpose_a": a, "transpose_b": b}
    if rng.random() < 0.5:
        batch = dims(rng, 1)
        return row("batch_dot", {"lhs": (*batch, *left), "rhs": (*batch, *right)}, attrs)
    if rng.random() < 0.4:
        left = (k, *dims(rng, 1), n) if a else (n, *dims(rng, 1), k)
    if rng.random() < 0.2:
        right = (right[0] + 1, right[1])
    return row("dot", {"lhs": left, "rhs": right}, attrs)


@family
def softmax_output(rng: Random) -> Case:
    attrs: dict[str, Any] = {}
    multi = rng.random() < 0.5
    batch, classes = rng.randint(1, 4), rng.randint(2, 5)
    data: tuple[int, ...] = (batch, classes)
    label: tuple[int, ...] = (batch,)
    if multi:
        attrs["multi_output"] = True
        tail = dims(rng, rng.randint(1, 2), 1, 4)
        data, label = (batch, classes, *tail), (batch, *tail)
    elif rng.random() < 0.4:
        tail = dims(rng, 1, 1, 4)
        data, label = (batch, *tail, classes), (batch, *tail)
        attrs["preserve_shape"] = True
    if rng.random() < 0.4:
        attrs["use_ignore"], attrs["ignore_label"] = True, rng.choice([-1, 0, 1])
    if rng.random() < 0.6:
        attrs["normalization"] = rng.choice(["null", "batch", "valid"])
    if rng.random() < 0.3:
        attrs["smooth_alpha"] = 0.25
    if rng.random() < 0.4:
        attrs["grad_scale"] = 2.5
    inputs = {
        "data": Arg(data, -2, 2),
        "label": Arg(label, -1 if "use_ignore" in attrs else 0, classes - 1, "int", grad=False),
    }
    return row("SoftmaxOutput", inputs, attrs, rtol=1e-4, atol=1e-5, why="exp and a sum")


@family
def softmax(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 4), 1, 6)
    attrs: dict[str, Any] = {"axis": signed_axis(rng, len(shape))}
    if rng.random() < 0.4:
        attrs["temperature"] = rng.choice([0.5, 2.0, 3.0])
    name = rng.choice(["softmax", "log_softmax", "softmin"])
    return row(name, {"data": Arg(shape, -3, 3)}, attrs, rtol=1e-4, atol=1e-5, why="exp and a sum")


@family
def batch_norm(rng: Random) -> Case:
    shape = (rng.randint(2, 4), *dims(rng, rng.randint(1, 3), 2, 5))
    axis = rng.choice([1, 1, 1, -1])
    attrs: dict[str, Any] = {
        "fix_gamma": rng.random() < 0.5,
        "use_global_stats": rng.random() < 0.3,
        "momentum": rng.choice([0.9, 0.5]),
        "eps": rng.choice([1e-3, 1e-5, 2e-2]),
    }
    if axis != 1:
        attrs["axis"] = axis
    per = (shape[axis],)
    inputs = {
        "data": Arg(shape, -2, 2),
        "gamma": Arg(per, 0.5, 1.5),
        "beta": per,
        "moving_mean": Arg(per, grad=False),
        "moving_var": Arg(per, 0.5, 1.5, grad=False),
    }
    near = {"rtol": 1e-3, "atol": 1e-4, "why": "the gradient takes differences of nearly equal sums"}
    return row("BatchNorm", inputs, attrs, is_train=rng.random() < 0.8, grad=True, **near)


@family
def leaky_relu(rng: Random) -> Case:
    shape = dims(rng, rng.randint(2, 4))
    kind = rng.choice(["leaky", "elu", "prelu", "gelu"])
    inputs: dict[str, Any] = {"data": Arg(shape, -2, 2)}
    if kind == "prelu":
        inputs["gamma"] = Arg((rng.choice([1, shape[1]]),), 0.1, 0.9)
    attrs = {"act_type": kind, "slope": rng.choice([0.1, 0.25, 0.5])}
    return row("LeakyReLU", inputs, attrs, rtol=1e-4, atol=1e-5, why="exp and erf")


@family
def picking(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 4), 1, 5)
    axis = signed_axis(rng, len(shape))
    keep = rng.random() < 0.5
    index = tuple(1 if i == axis % len(shape) else d for i, d in enumerate(shape))
    if not keep:
        index = tuple(d for i, d in enumerate(shape) if i != axis % len(shape)) or (1,)
    attrs = {"axis": axis, "keepdims": keep, "mode": rng.choice(["clip", "wrap"])}
    return row("pick", {"data": shape, "index": Arg(index, -3, 6, kind="int", grad=False)}, attrs)


@family
def ordering(rng: Random) -> Case:
    shape = dims(rng, rng.randint(1, 3), 1, 5)
    axis = signed_axis(rng, len(shape))
    data = {"data": Arg(shape, kind="distinct")}
    ascend = rng.random() < 0.5
    name = rng.choice(["sort", "argsort", "topk", "topk"])
    if name != "topk":
        return row(name, data, {"axis": axis, "is_ascend": ascend}, grad=name == "sort")
    kind = rng.choice(["value", "indices", "mask", "both"])
    attrs = {"axis": axis, "is_ascend": ascend, "ret_typ": kind, "k": rng.randint(0, shape[axis])}
    return row("topk", data, attrs, grad=kind in ("value", "both"))
