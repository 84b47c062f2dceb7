"""Operators that are methods of NDArray and Symbol too, as in MXNet: `x.sum(axis=1)` is `mx.nd.sum(x, axis=1)`.

An operator's attribute `TMethods` has the methods' names: its own name, or some of its aliases. `attach` sets it for
those of MXNet when all operators are registered; any other operator can set it for itself:

    op = register("cumsum", ...).set_attr("TMethods", ("cumsum",))
"""

from __future__ import annotations

from collections.abc import Callable

from .operator import Op

__all__ = ["NAMES", "attach"]

# fmt: off
NAMES = frozenset((
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "argmax", "argmax_channel", "argmin",
    "argsort", "broadcast_axes", "broadcast_like", "broadcast_to", "cbrt", "ceil", "clip", "cos", "cosh", "degrees",
    "depth_to_space", "diag", "exp", "expand_dims", "expm1", "fix", "flatten", "flip", "floor", "log", "log10",
    "log1p", "log2", "log_softmax", "max", "mean", "min", "nanprod", "nansum", "norm", "one_hot", "ones_like",
    "pad", "pick", "prod", "radians", "rcbrt", "reciprocal", "relu", "repeat", "reshape", "reshape_like", "rint",
    "round", "rsqrt", "shape_array", "sigmoid", "sign", "sin", "sinh", "size_array", "slice", "slice_axis",
    "slice_like", "softmax", "softmin", "sort", "space_to_depth", "split", "sqrt", "square", "squeeze", "sum",
    "swapaxes", "take", "tan", "tanh", "tile", "topk", "transpose", "trunc", "zeros_like",
))
# fmt: on
"""The names of MXNet's methods that are operators."""


def attach(find: Callable[[str], Op | None]) -> None:
    """Set `TMethods` of the operators that have a name of `NAMES`, unless they have set it themselves.

    Args:
        find: the registered operator of a name, or None.
    """
    names: dict[Op, list[str]] = {}
    for name in sorted(NAMES):
        op = find(name)
        if op is not None:
            names.setdefault(op, []).append(name)
    for op, methods in names.items():
        op.set_attr("TMethods", tuple(methods), level=0)
