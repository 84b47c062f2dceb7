"""The updates of an optimizer: those of one operator are one command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from opbox_protocol.commands import OtherAttrs, Update
from opbox_protocol.mxnet import attribute_text

from .. import _schema
from ..base import value_text
from ..session import Session
from .handle import Handle

__all__ = ["ArrayUpdate", "invoke_update"]


class ArrayUpdate(Protocol):
    """One update by an operator that writes its result to its first input, and its states in place.

    Attributes:
        op: the operator's name.
        inputs: its inputs in order.
        attrs: the parameters that updates of one command share.
        own: the parameters of this update.
    """

    @property
    def op(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Handle]: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def own(self) -> Mapping[str, Any]: ...


def invoke_update(updates: Iterable[ArrayUpdate]) -> None:
    """Run updates: neighbours of one operator, session and shared parameters travel in one command.

    Raises:
        TypeError: something else than an NDArray among the inputs.
    """
    updates = list(updates)
    for update in updates:
        for value in update.inputs:
            if not isinstance(value, Handle):
                raise TypeError(f"{update.op}: expected NDArrays, got {value_text(value)}: mx.nd.array(…) makes one")
    for (session, op, attrs, _), group in groupby(updates, key=_shared):
        members = list(group)
        shared, other = _usual([_text(update.own) for update in members])
        inputs = [list(ids) for ids in zip(*([x._id for x in update.inputs] for update in members), strict=True)]
        command: Update = {"do": "update", "op": op, "attrs": attrs | shared, "inputs": inputs}
        if other:
            command["other_attrs"] = other
        session.record(command)


def _usual(own: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[OtherAttrs]]:
    """The usual value of each parameter that all updates have; and what differs, with the updates' numbers.

    A step that states each learning rate once is a third as long.
    """
    first = own[0]
    if all(params == first for params in own):
        return dict(first), []
    usual = {}
    for key in first:
        values = [params.get(key) for params in own]
        value, _ = Counter(values).most_common(1)[0]
        if value is not None and None not in values:
            usual[key] = value
    calls: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number, params in enumerate(own):
        if params != usual:
            different = tuple((key, value) for key, value in params.items() if usual.get(key) != value)
            calls.setdefault(different, []).append(number)
    return usual, [{"calls": numbers, "attrs": dict(different)} for different, numbers in calls.items() if different]


def _shared(update: ArrayUpdate) -> tuple[Session, str, dict[str, str], int]:
    """Return session, operator, parameters and number of inputs, which updates must share to be one command."""
    return update.inputs[0]._session, _schema.get(update.op).name, _text(update.attrs), len(update.inputs)


def _text(params: Mapping[str, Any]) -> dict[str, str]:
    return {key: attribute_text(value) for key, value in params.items() if value is not None}
