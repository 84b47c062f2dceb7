"""The names of a symbol's arguments, sorted by what a module does with them; and descriptions of what it is fed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..base import value_text
from ..io import DataDesc

__all__ = ["ArgumentNames", "described"]

_PARAMETER_ENDINGS = ("_weight", "_bias", "_gamma", "_beta")


class ArgumentNames:
    """Names of a symbol's arguments: data, labels, states and parameters.

    Args:
        symbol: the network.
        data, labels, states: the arguments that are fed, or kept from batch to batch.
        fixed: parameters that are not trained.

    Attributes:
        fed: data, labels and states.
        parameters: all other arguments.
        auxiliary: the symbol's auxiliary states.
        outputs: its outputs.

    Raises:
        ValueError: data, a state or a fixed parameter that is no argument of the symbol; of a label it is a warning.
    """

    def __init__(
        self,
        symbol: Any,
        data: Sequence[str] | None,
        labels: Sequence[str] | None,
        states: Sequence[str] | None,
        fixed: Sequence[str] | None,
    ) -> None:
        self.data = list(data or [])
        self.labels = list(labels or [])
        self.states = list(states or [])
        self.fixed = list(fixed or [])
        self.arguments: list[str] = symbol.list_arguments()
        self.auxiliary: list[str] = symbol.list_auxiliary_states()
        self.outputs: list[str] = symbol.list_outputs()
        self._check(self.data, "data", True)
        self._check(self.labels, "label", False)
        self._check(self.states, "state", True)
        self._check(self.fixed, "fixed_param", True)
        self.fed = [*self.data, *self.labels, *self.states]
        self.parameters = [name for name in self.arguments if name not in self.fed]

    def _check(self, names: Sequence[str], kind: str, throw: bool) -> None:
        """Warn, or with `throw` raise ValueError, when the symbol lacks one of the names."""
        parameters = kind == "fixed_param"
        candidates = [name for name in self.arguments if name.endswith(_PARAMETER_ENDINGS) == parameters]
        for name in names:
            if name not in self.arguments:
                message = (
                    f"Module: {kind}_names has {name!r}, which is no argument of the symbol: expected some of "
                    f"{', '.join(candidates)}"
                )
                unfed = [one for one in candidates if one not in self.data]
                if kind == "label" and len(unfed) == 1:
                    message += f": make the module with label_names={unfed}"
                if throw:
                    raise ValueError(message)
                warnings.warn(message, stacklevel=4)

    def label_error(self, name: str) -> ValueError | None:
        """The error of an argument that would be trained and is the label, as far as can be seen; None if it is not."""
        if name.endswith(_PARAMETER_ENDINGS) or any(label in self.arguments for label in self.labels):
            return None
        return ValueError(
            f"Module: {name!r} is an input that nothing feeds, and no initializer has a rule for it: if it is the "
            f"label, make the module with label_names=[{name!r}], got label_names={self.labels}"
        )

    def requests(self, grad_req: Any, inputs_need_grad: bool) -> dict[str, str]:
        """The gradient request of each argument: "write", "add" or "null".

        Args:
            grad_req: one for all, a list in the arguments' order, or a dict by argument.
            inputs_need_grad: whether the data have gradients too.
        """
        if isinstance(grad_req, (list, tuple)):
            if len(grad_req) != len(self.arguments):
                raise AssertionError(
                    f"grad_req: expected {len(self.arguments)} entries, one an argument, got {len(grad_req)}"
                )
            return dict(zip(self.arguments, grad_req, strict=True))
        if not isinstance(grad_req, (str, Mapping)):
            raise ValueError(f"grad_req: expected a string, a list or a dict, got {type(grad_req).__name__}")
        general = grad_req if isinstance(grad_req, str) else "write"
        requests = dict.fromkeys(self.arguments, "null")
        for name in self.parameters:
            requests[name] = "null" if name in self.fixed else general
        if inputs_need_grad:
            requests |= dict.fromkeys(self.data, general)
        return requests if isinstance(grad_req, str) else requests | dict(grad_req)


def described(
    names: ArgumentNames, data_shapes: Any, label_shapes: Any
) -> tuple[list[DataDesc], list[DataDesc] | None]:
    """Descriptions of data and labels, checked against the module's names.

    Raises:
        TypeError: no list of names with shapes.
        ValueError: data that the module does not know, or lacks.
        AssertionError: arrays of different batch sizes.
    """
    data = _descriptions("data_shapes", data_shapes)
    _check_match(names.data, data, "data", True)
    # Some iterators give [] where there are no labels; MXNet binds without labels then, as with None.
    labels = _descriptions("label_shapes", label_shapes) if label_shapes else None
    if labels is not None:
        _check_match(names.labels, labels, "label", False)
    _check_batch_sizes([*data, *(labels or [])])
    return data, labels


def _check_batch_sizes(descs: Sequence[DataDesc]) -> None:
    """AssertionError unless all arrays whose layout has a batch axis have as many samples."""
    first: tuple[str, int] | None = None
    for desc in descs:
        axis = DataDesc.get_batch_axis(desc.layout)
        if axis < 0:
            continue
        size = desc.shape[axis] if axis < len(desc.shape) else None
        if size is None or (first is not None and size != first[1]):
            wanted = "an array" if first is None else f"the batch size of {first[0]}, {first[1]},"
            raise AssertionError(
                f"{desc.name}: expected {wanted} on axis {axis}, the N of its layout, got shape {tuple(desc.shape)}"
            )
        if first is None:
            first = desc.name, size


def _descriptions(argument: str, shapes: Any) -> list[DataDesc]:
    """Descriptions from pairs (name, shape); TypeError for anything else."""
    if not isinstance(shapes, list | tuple) or not all(_is_description(one) for one in shapes):
        raise TypeError(
            f"{argument}: expected a list of names with their shapes such as [('data', (100, 784))], "
            f"got {value_text(shapes)}"
        )
    return [one if isinstance(one, DataDesc) else DataDesc(*one) for one in shapes]


def _is_description(one: Any) -> bool:
    return (
        isinstance(one, list | tuple) and len(one) >= 2 and isinstance(one[0], str) and isinstance(one[1], list | tuple)
    )


def _check_match(names: Sequence[str], shapes: Sequence[DataDesc], kind: str, throw: bool) -> None:
    if sorted(names) == sorted(desc.name for desc in shapes):
        return
    message = (
        f"{kind}_shapes: expected the names of {kind}_names, {', '.join(names) or 'none'}, "
        f"got {', '.join(desc.name for desc in shapes) or 'none'}"
    )
    if len(names) == len(shapes) == 1:
        message += (
            f": make the iterator with {kind}_name={names[0]!r}, or the module with {kind}_names={[shapes[0].name]}"
        )
    if throw:
        raise ValueError(message)
    warnings.warn(message, stacklevel=5)
