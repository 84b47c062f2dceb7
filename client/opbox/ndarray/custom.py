"""`mx.nd.Custom`: runs a user's operator on arrays."""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import attribute_text

from ..operator.definition import registered
from ..operator.sending import define
from .array import NDArray
from .invocation import invoke, session_of

__all__ = ["Custom"]


def Custom(
    *data: NDArray, op_type: Any = None, out: Any = None, ctx: Any = None, name: str | None = None, **kwargs: Any
) -> Any:
    """Run an operator that was registered with `mx.operator.register` on arrays, at once.

    Args:
        data: its inputs and then its auxiliary states, by position; or by name as keywords.
        op_type: the name that it was registered by.
        out: arrays to write to.
        ctx: the device, when there are no inputs.
        name: has no effect.
        kwargs: further keywords go to the Prop's constructor, as strings.

    Returns:
        The output, or a list when there are several.

    Raises:
        MXNetError: no such operator is registered, or an input is missing.
    """
    op = registered(op_type)
    named = {key: value for key, value in kwargs.items() if isinstance(value, NDArray)}
    attrs = {key: attribute_text(value) for key, value in kwargs.items() if key not in named}
    attrs["op_type"] = op_type
    op.check(attrs)
    names = op.input_names(attrs)
    rest = names[len(data) :]
    unknown = [key for key in named if key not in rest]
    missing = [key for key in rest if key not in named]
    if unknown or missing or len(data) > len(names):
        got = ", ".join([*(f"{len(data)} by position" for _ in data[:1]), *named]) or "none"
        raise MXNetError(f"Custom ({op_type}): expected the inputs {', '.join(names) or 'none'}, got {got}")
    inputs = [*data, *(named[key] for key in rest)]
    attrs["__code__"] = define(session_of(op, inputs, out, ctx), op.definition, fresh=False)
    return invoke(op, attrs, inputs, out, ctx)
