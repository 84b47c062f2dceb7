"""Updates of float16 weights that have float32 copies, in as few commands as those of other weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .. import ndarray as nd
from ..ndarray import NDArray
from .optimizer import OperatorUpdate

__all__ = ["invoke_updates"]

ON_COPIES = {
    "sgd_update": "mp_sgd_update",
    "sgd_mom_update": "mp_sgd_mom_update",
    "nag_mom_update": "mp_nag_mom_update",
}
"""Operators that have a form which takes the float16 weight and gradient, and the copy as its last input."""
MAX_ELEMENTS = 1 << 24
"""Elements of gradients that are float32 at a time."""

_OnCopy = tuple[NDArray, OperatorUpdate]


def invoke_updates(calls: Sequence[OperatorUpdate], on_copies: Sequence[_OnCopy]) -> None:
    """Run an optimizer's updates.

    Args:
        calls: of weights themselves.
        on_copies: float16 weights, and the updates of their float32 copies by float16 gradients.
    """
    calls = list(calls)
    others: list[_OnCopy] = []
    for weight, call in on_copies:
        if call.op in ON_COPIES:
            copy, gradient, *states = call.inputs
            calls.append(replace(call, op=ON_COPIES[call.op], inputs=[weight, gradient, *states, copy]))
        else:
            others.append((weight, call))
    if calls:
        nd.invoke_update(calls)
    for group in _groups(others):
        _update_by_casts(group)


def _groups(calls: Iterable[_OnCopy]) -> Iterator[list[_OnCopy]]:
    """Neighbours on one device, whose gradients have at most MAX_ELEMENTS together if they are several."""
    group: list[_OnCopy] = []
    elements = 0
    for weight, call in calls:
        elements += weight.size
        if group and (elements > MAX_ELEMENTS or weight.context != group[0][0].context):
            yield group
            group, elements = [], weight.size
        group.append((weight, call))
    if group:
        yield group


def _update_by_casts(calls: Sequence[_OnCopy]) -> None:
    """Cast the gradients, update the copies, and cast those into the weights: each is one command."""
    weights, updates = zip(*calls, strict=True)
    copies = [update.inputs[0] for update in updates]
    count, context = len(calls) + 1, weights[0].context
    # Arrays of several types become the widest type, or the narrowest: one number is there to say which.
    wide, narrow = nd.zeros((1,), context), nd.zeros((1,), context, dtype="float16")
    _, *gradients = nd.amp_multicast(wide, *(update.inputs[1] for update in updates), num_outputs=count)
    nd.invoke_update(
        replace(update, inputs=[copy, gradient, *update.inputs[2:]])
        for update, copy, gradient in zip(updates, copies, gradients, strict=True)
    )
    nd.amp_multicast(narrow, *copies, num_outputs=count, cast_narrow=True, out=[narrow, *weights])
