"""Limits `infer_shape_partial` to the unknown shapes that MXNet 1.9.1's rules infer.

The rules here infer what they can, in both directions, and `infer_shape` and binding use them so. Many of MXNet's
wait for an input that is known, or let one input follow from another in one direction alone. The table says which.

    ins, outs = infer_in_part(node, rule, ins, outs)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from opbox_protocol.shapes import Shape, known

from .infer import ShapeList, all_same_shape

__all__ = ["infer_in_part"]

Sides: TypeAlias = "tuple[Sequence[Shape], Sequence[Shape]]"
Rule: TypeAlias = "Callable[[Sequence[Shape], Sequence[Shape]], Sides]"
"""A node's own rule: the shapes of inputs and outputs, before and after."""
Habit: TypeAlias = "Callable[[Rule, Sequence[Shape], Sequence[Shape]], Sides]"
"""A rule's result as MXNet's has it."""
Condition: TypeAlias = "Callable[[Sequence[Shape]], bool]"


def infer_in_part(name: str, rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
    """Infer unknown shapes as MXNet's rule of the operator `name` does, and no more.

    Args:
        name: the operator.
        rule: the node's own rule, which may infer more than MXNet's.
        ins, outs: shapes of inputs and outputs; None where unknown, -1 for an unknown dimension.
    """
    habit = HABITS.get(name)
    return rule(ins, outs) if habit is None else habit(rule, ins, outs)


def _has_rank(shape: Shape) -> bool:
    return shape is not None


def _first_ranked(ins: Sequence[Shape]) -> bool:
    return not ins or _has_rank(ins[0])


def _first_two_ranked(ins: Sequence[Shape]) -> bool:
    return all(map(_has_rank, ins[:2]))


def _first_known(ins: Sequence[Shape]) -> bool:
    return not ins or known(ins[0])


def _all_ranked(ins: Sequence[Shape]) -> bool:
    return all(map(_has_rank, ins))


def _all_known(ins: Sequence[Shape]) -> bool:
    return all(map(known, ins))


def _any_known(ins: Sequence[Shape]) -> bool:
    return any(map(known, ins))


def _everything(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
    return rule(ins, outs)


def _waiting(condition: Condition, then: Habit = _everything) -> Habit:
    """Nothing is inferred until `condition` holds."""

    def habit(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
        return then(rule, ins, outs) if condition(ins) else (ins, outs)

    return habit


def _from_first(count: int = 1) -> Habit:
    """Outputs and other inputs follow from the first `count` inputs, which follow from outputs alone."""

    def habit(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
        inferred, after = rule([*ins[:count], *[None] * (len(ins) - count)], outs)
        merged = ShapeList(ins, "input")
        for k, shape in enumerate(inferred[count:], count):
            merged.merge(k, shape)
        return [*inferred[:count], *merged[count:]], after

    return habit


def _first_apart(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
    """The first input and the outputs follow from each other, other inputs from all."""
    (first, *_), after = rule([ins[0], *[None] * (len(ins) - 1)], outs)
    return [first, *rule(ins, outs)[0][1:]], after


def _of_first(count: int) -> Habit:
    """The first `count` inputs and the outputs follow from each other, other inputs from nothing."""

    def habit(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
        inferred, after = rule([*ins[:count], *[None] * (len(ins) - count)], outs)
        return [*inferred[:count], *ins[count:]], after

    return habit


def _whole_outputs(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
    """Outputs follow from inputs where they are then known; inputs follow from nothing."""
    after = rule(ins, outs)[1]
    return ins, after if all(map(known, after)) else outs


def _forwards(count: int | None = None) -> Habit:
    """Outputs follow from (the first `count`) inputs; inputs follow from nothing."""

    def habit(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
        seen = len(ins) if count is None else count
        return ins, rule([*ins[:seen], *[None] * (len(ins) - seen)], outs)[1]

    return habit


def _all_but(position: int, *, filled: bool = False) -> Habit:
    """The input at `position` follows from nothing; with `filled` it does where nothing is known of it."""

    def habit(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
        inferred, after = rule(ins, outs)
        shape = inferred[position] if filled and ins[position] is None else ins[position]
        return [*inferred[:position], shape, *inferred[position + 1 :]], after

    return habit


def _one_shape(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
    """All inputs and outputs are of one shape, whatever else is to hold of it."""
    sides = ShapeList(ins, "input"), ShapeList(outs, "output")
    all_same_shape(None, *sides)
    return sides


def _broadcasting(rule: Rule, ins: Sequence[Shape], outs: Sequence[Shape]) -> Sides:
    """A dimension of the output is unknown where one of an input is, even if the other settles it."""
    inferred, (shape,) = rule(ins, [None])
    if shape is not None:
        unknown = {axis for source in ins if source is not None for axis in range(-len(source), 0) if source[axis] < 0}
        shape = tuple(-1 if axis in unknown else shape[axis] for axis in range(-len(shape), 0))
    after = ShapeList(outs, "output")
    after.merge(0, shape)
    return inferred, after


_BROADCASTING = (
    *("add", "sub", "mul", "div", "mod", "power", "hypot", "maximum", "minimum", "equal", "not_equal", "greater"),
    *("greater_equal", "lesser", "lesser_equal", "logical_and", "logical_or", "logical_xor"),
)
_DENSITIES = (
    "uniform",
    "normal",
    "gamma",
    "exponential",
    "poisson",
    "negative_binomial",
    "generalized_negative_binomial",
)

HABITS: Mapping[str, Habit] = {
    **dict.fromkeys(
        (
            *("Embedding", "GroupNorm", "Pooling", "Reshape", "_ravel_multi_index", "broadcast_like", "broadcast_to"),
            *("sum", "mean", "prod", "nansum", "nanprod"),
        ),
        _waiting(_first_ranked),
    ),
    **dict.fromkeys(
        (
            *(
                "Flatten",
                "LRN",
                "UpSampling",
                "LinearRegressionOutput",
                "LogisticRegressionOutput",
                "MAERegressionOutput",
            ),
            *(
                "_contrib_AdaptiveAvgPooling2D",
                "_contrib_BilinearResize2D",
                "_contrib_Proposal",
                "_contrib_MultiProposal",
            ),
            *(
                "_contrib_SyncBatchNorm",
                "_contrib_box_nms",
                "_image_to_tensor",
                "_slice_assign_scalar",
                "argmax",
                "argmin",
            ),
            *("argmax_channel", "broadcast_axis", "col2im", "im2col", "gather_nd", "max", "min", "norm", "one_hot"),
            *("squeeze", "tile", "where"),
        ),
        _waiting(_first_known),
    ),
    "_contrib_DeformableConvolution": _waiting(_first_known, _all_but(1, filled=True)),
    **dict.fromkeys(
        ("_linalg_gemm2", "_linalg_trmm", "_linalg_trsm", "_random_pdf_dirichlet", "batch_dot"), _waiting(_all_ranked)
    ),
    **dict.fromkeys(("BilinearSampler", "SpatialTransformer", "_contrib_boolean_mask"), _waiting(_all_known)),
    "take": _waiting(_any_known),
    **dict.fromkeys(
        (
            *("Convolution", "Convolution_v1", "Deconvolution", "FullyConnected", "RNN"),
            *("BatchNorm", "BatchNorm_v1", "_contrib_BatchNormWithReLU", "InstanceNorm", "LayerNorm"),
        ),
        _waiting(_first_ranked, _from_first()),
    ),
    "_linalg_gemm": _waiting(_first_two_ranked, _from_first(2)),
    **dict.fromkeys((f"_random_pdf_{name}" for name in _DENSITIES), _waiting(_all_ranked, _first_apart)),
    **dict.fromkeys(
        (
            *("IdentityAttachKLSparseReg", "SVMOutput", "SequenceMask", "SequenceReverse"),
            *("pick", "scatter_nd"),
        ),
        _from_first(),
    ),
    **dict.fromkeys(
        (
            "_contrib_DeformablePSROIPooling",
            "_contrib_MultiBoxDetection",
            "_contrib_PSROIPooling",
            "_contrib_box_decode",
            "_contrib_allclose",
            "_linalg_sumlogdiag",
        ),
        _forwards(),
    ),
    "Correlation": _forwards(1),
    "SoftmaxOutput": _first_apart,
    "stack": _whole_outputs,
    "_adamw_update": _all_but(4),
    "_mp_adamw_update": _of_first(2),
    **dict.fromkeys(("_linalg_potrf", "_linalg_potri"), _one_shape),
    **dict.fromkeys((f"broadcast_{name}" for name in _BROADCASTING), _broadcasting),
}
"""By operator; where it is not listed, MXNet infers in part what its rule here does."""
