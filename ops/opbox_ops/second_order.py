"""Gradients of gradients: FGradient of the backward operators that are no formulas.

Three kinds of operators need no more than a row in a table:

    linear      y = L x: the backward operator is L's transpose, whose gradient is L itself
    bilinear    y = B(a, b): the gradients of g -> (B'(g, b), B''(g, a)) are B and its transposes again
    masked      the backward operator multiplies g by what is constant almost everywhere, and spreads it

`h` is the gradient that arrives for a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opbox_protocol.errors import UnsupportedError

# The operators that the tables name are registered by these files.
from .broadcast import to_shape  # noqa: F401
from .elementwise import binary, contributed, unary  # noqa: F401
from .gradient import backward_node, is_zero, linear_gradient, make_node
from .image import arrange  # noqa: F401
from .index import embedding, gather, pick, take  # noqa: F401
from .init import fill  # noqa: F401
from .linalg import batch_dot, diagonal, dot, fourier, gemm, numpy_products, triangular  # noqa: F401
from .nn import (  # noqa: F401
    convolution,
    convolution_v1,
    crop,
    deconvolution,
    dropout,
    flatten,
    fully_connected,
    im2col,
    interleaved_attention,
    pooling,
    resize,
    softmax,
    upsampling,
)
from .node import Entry, Node
from .reduce import norm, statistics  # noqa: F401
from .reduce.axes import NumpyExtremeParams
from .registry import GradientRule, get
from .shape import axes, blocks, concat, numpy_shapes, pad, repeat, reshape, slice, split, transpose, view  # noqa: F401

Grads = list[Entry | None]

LINEAR: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("_backward_Concat", "_backward_stack", "_backward_npi_concatenate"), ()),
    "_backward_Embedding": (1,),
    **dict.fromkeys(
        (
            *("_backward_Flatten", "_backward_Reshape", "_backward_reshape_like", "_backward_expand_dims"),
            *("_backward_squeeze", "_backward_transpose", "_backward_SwapAxis", "_backward_reverse"),
            *("_backward_depth_to_space", "_backward_space_to_depth", "_backward_diag", "_backward_tile"),
            *("_backward_repeat", "_backward_slice", "_backward_slice_axis", "_backward_slice_like", "_backward_Crop"),
            *("_backward_SliceChannel", "_backward__split_v2", "_broadcast_backward", "_backward_sum"),
            *("_backward_mean", "_backward_take", "_backward_pick", "_backward_batch_take", "_backward_gather_nd"),
            *("_backward_scatter_nd", "_backward_im2col", "_backward_col2im", "_backward_image_crop"),
            *("_backward_contrib_AdaptiveAvgPooling2D", "_backward_contrib_BilinearResize2D"),
            *("_backward_image_flip_left_right", "_backward_image_flip_top_bottom"),
            *("_backward_contrib_fft", "_backward_contrib_ifft"),
            *("_backward_linalg_extractdiag", "_backward_linalg_extracttrian", "_backward_linalg_makediag"),
            *("_backward_linalg_maketrian", "_backward_contrib_div_sqrt_dim"),
            *("_backward_np_sum", "_backward_npi_mean"),
            *("_backward__np_reshape", "_backward__npx_reshape", "_backward__np_squeeze"),
        ),
        (0,),
    ),
}
"""Backward operators of linear operators: the positions of the forward inputs that these are linear in; (): all."""

BILINEAR = (
    *("_backward_FullyConnected", "_backward_Convolution", "_backward_Deconvolution"),
    *("_backward_dot", "_backward_np_dot", "_backward_batch_dot", "_backward_linalg_gemm2", "_backward_linalg_trmm"),
    *("_backward_interleaved_matmul_encdec_qk", "_backward_interleaved_matmul_encdec_valatt"),
    *("_backward_npi_matmul", "_backward_npi_tensordot", "_backward_npi_tensordot_int_axes"),
)
"""Backward operators (g, a, b) of operators that are linear in each of two inputs; a third one is an added bias."""

MASKED = ("_backward_max", "_backward_min", "_backward_nansum", "_backward_np_max", "_backward_np_min")
"""Backward operators (g, …) of reductions that hand g on to some elements, the same ones nearby."""


def _node(like: Node, name: str, inputs: list[Entry], **attrs: Any) -> Entry:
    return make_node(name, f"{like.name}_backward", inputs, attrs)


def _times(node: Node, a: Entry, b: Entry) -> Entry:
    return _node(node, "elemwise_mul", [a, b])


def _sum(node: Node, entries: list[Entry]) -> Entry | None:
    """The sum of gradients of one array; None of none."""
    total: Entry | None = None
    for entry in entries:
        total = entry if total is None else _node(node, "_grad_add", [total, entry])
    return total


def _again(node: Node, *inputs: Entry) -> tuple[Entry, ...]:
    """The backward node on other inputs."""
    again = Node(
        node.op,
        f"{node.name}_backward",
        node.attrs,
        node.params,
        inputs,
        forward=node.forward,
        source=node.source,
        outputs=node.outputs,
    )
    return again.entries()


def _apply(node: Node, inputs: list[Entry], **attrs: str) -> Entry:
    """The forward operator on other inputs."""
    forward = node.forward
    assert forward is not None
    assert forward.op is not None
    texts = {**forward.attrs, **attrs}
    params = forward.op.parse(texts) if attrs else forward.params
    return Entry(Node(forward.op, f"{node.name}_backward", texts, params, tuple(inputs), source=node.source))


def bilinear_gradient(node: Node, grads: list[Entry]) -> Grads:
    """FGradient of a backward node (g, a, b) whose outputs are the gradients of a and b, and of a bias."""
    g, a, b = node.inputs
    bias = grads[2] if len(grads) > 2 and not is_zero(grads[2]) else None
    alone = {"no_bias": "True"} if len(grads) > 2 else {}
    by_g: list[Entry] = []
    by_a = by_b = None
    if not is_zero(grads[0]):
        by_g.append(_apply(node, [grads[0], b], **alone))
        by_b = _again(node, g, grads[0], b)[1]
    if bias is not None:
        by_g.append(_apply(node, [a, grads[1], bias]))
    elif not is_zero(grads[1]):
        by_g.append(_apply(node, [a, grads[1]], **alone))
    if not is_zero(grads[1]):
        by_a = _again(node, g, a, grads[1])[0]
    return [_sum(node, by_g), by_a, by_b]


def masked_gradient(node: Node, grads: list[Entry]) -> Grads:
    """FGradient of a backward node that multiplies g by a mask: the sum of h times that mask."""
    (h,) = grads
    ones = _node(node, "ones_like", [node.inputs[0]])
    (mask,) = _again(node, ones, *node.inputs[1:])
    return [_reduced(node, _times(node, h, mask)), *[None] * (len(node.inputs) - 1)]


def _reduced(node: Node, value: Entry) -> Entry:
    """The sum of `value`, which has data's shape, over the axes that the forward reduction sums over."""
    forward = node.forward
    assert forward is not None
    wanted = {key: forward.attrs[key] for key in ("axis", "keepdims", "exclude") if key in forward.attrs}
    return _node(node, _sum_like(forward), [value], **wanted)


def _sum_like(forward: Node) -> str:
    """The sum that reduces to the shape that a reduction does: mx.np's for one of mx.np."""
    return "_np_sum" if isinstance(forward.params, NumpyExtremeParams) else "sum"


def _spread(node: Node, value: Entry) -> Entry:
    """`value`, which has the shape of the forward reduction's output, repeated along the axes that it sums over."""
    forward = node.forward
    assert forward is not None
    wanted = {key: forward.attrs[key] for key in ("axis", "keepdims", "exclude") if key in forward.attrs}
    op = get(_sum_like(forward))
    total = Node(op, f"{node.name}_backward", wanted, op.parse(wanted), forward.inputs, source=node.source)
    (spread,) = backward_node(f"_backward_{op.name.lstrip('_')}", total, [value])
    assert spread is not None
    return spread


@get("_backward_norm").gradient
def _(node: Node, grads: list[Entry]) -> Grads:
    """gx = sign(x) g, or g x / y: with s = sum of h x, the gradients are s / y, h g / y and -s g / y^2."""
    if getattr(node.params, "out_dtype", None) is not None:
        raise UnsupportedError("the gradient of its gradient: expected no out_dtype").at(node.name, "norm", node.source)
    if getattr(node.params, "ord", 2) == 1:
        return masked_gradient(node, grads)
    (h,), (g, x, y) = grads, node.inputs
    share = _node(node, "elemwise_div", [_reduced(node, _times(node, h, x)), y])
    ratio = _node(node, "elemwise_div", [g, y])
    by_y = _node(node, "negative", [_times(node, share, ratio)])
    return [share, _times(node, h, _spread(node, ratio)), by_y]


@get("_backward_np_prod").gradient
@get("_backward_prod").gradient
def _(node: Node, grads: list[Entry]) -> Grads:
    """gx = g y / x: with s = sum of h / x, the gradients are s y, -h g y / x^2 and s g. No element may be 0."""
    (h,), (g, x, y) = grads, node.inputs
    share = _reduced(node, _node(node, "elemwise_div", [h, x]))
    spread = _node(node, "elemwise_div", [_spread(node, _times(node, g, y)), _node(node, "square", [x])])
    by_x = _node(node, "negative", [_times(node, h, spread)])
    return [_times(node, share, y), by_x, _times(node, share, g)]


def _softmax_scale(node: Node, sign: float) -> tuple[str, float]:
    """The axis, and the factor on the gradient that temperature and sign make."""
    p: Any = node.params
    if p.dtype is not None:
        raise UnsupportedError("the gradient of its gradient: expected no dtype").at(node.name, "softmax", node.source)
    return str(p.axis), sign / (p.temperature or 1.0)


def _scaled(node: Node, value: Entry, factor: float) -> Entry:
    return value if factor == 1.0 else _node(node, "_mul_scalar", [value], scalar=repr(factor))


def _along(node: Node, value: Entry, axis: str) -> Entry:
    return _node(node, "sum", [value], axis=axis, keepdims=True)


def _softmax_rule(sign: float) -> GradientRule:
    """gx = c y (g - s), s = sum of g y: its own transpose in g; by y, c (h (g - s) - g t) with t = sum of h y."""

    def rule(node: Node, grads: list[Entry]) -> Grads:
        (h,), (g, y) = grads, node.inputs
        axis, factor = _softmax_scale(node, sign)
        s, t = _along(node, _times(node, g, y), axis), _along(node, _times(node, h, y), axis)
        left = _times(node, h, _node(node, "broadcast_sub", [g, s]))
        by_y = _node(node, "elemwise_sub", [left, _node(node, "broadcast_mul", [g, t])])
        return [_again(node, h, y)[0], _scaled(node, by_y, factor)]

    return rule


def _log_softmax_rule(node: Node, grads: list[Entry]) -> Grads:
    """gx = c (g - exp(y) sum of g): by g, c (h - sum of h exp(y)); by y, -c h exp(y) sum of g."""
    (h,), (g, y) = grads, node.inputs
    axis, factor = _softmax_scale(node, 1.0)
    weighted = _times(node, h, _node(node, "exp", [y]))
    by_g = _node(node, "broadcast_sub", [h, _along(node, weighted, axis)])
    by_y = _node(node, "broadcast_mul", [weighted, _along(node, g, axis)])
    return [_scaled(node, by_g, factor), _scaled(node, by_y, -factor)]


@get("_backward_Pooling").gradient
def _(node: Node, grads: list[Entry]) -> Grads:
    if len(node.inputs) > 1:
        raise UnsupportedError("the gradient of its gradient: expected pool_type avg or sum").at(
            node.name, "Pooling", node.source
        )
    return list(linear_gradient(0)(node, grads))


@get("_backward_UpSampling").gradient
def _(node: Node, grads: list[Entry]) -> Grads:
    if len(node.inputs) > 1:
        raise UnsupportedError("the gradient of its gradient: expected sample_type nearest and one input").at(
            node.name, "UpSampling", node.source
        )
    return list(linear_gradient(0)(node, grads))


@get("_backward_Pad").gradient
def _(node: Node, grads: list[Entry]) -> Grads:
    """Padding is linear but for the constant, which has no part in the gradient."""
    return [_apply(node, grads, constant_value="0")]


@get("_backward_Dropout").gradient
def _(node: Node, grads: list[Entry]) -> Grads:
    """A product with the mask, which is its own transpose."""
    return [_again(node, grads[0], node.inputs[1])[0], None]


def _attach(name: str, rule: GradientRule) -> None:
    get(name).set_attr("FGradient", rule)


_attach("_backward_softmax", _softmax_rule(1.0))
_attach("_backward_softmin", _softmax_rule(-1.0))
_attach("_backward_log_softmax", _log_softmax_rule)
for _name, _positions in LINEAR.items():
    _attach(_name, linear_gradient(*_positions))
for _name in BILINEAR:
    _attach(_name, bilinear_gradient)
for _name in MASKED:
    _attach(_name, masked_gradient)
