"""The parameters and auxiliary states of a module: setting those that are bound, and copies of them for the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..context import cpu
from ..initializer import InitDesc
from ..ndarray import NDArray, add_n
from .binding import Binding
from .executors import WriteCount
from .names import ArgumentNames

__all__ = ["Parameters"]

Values = Mapping[str, Any]


class Parameters:
    """A module's parameters and auxiliary states, by name.

    Args:
        names: the symbol's arguments, as the module sorts them.

    Attributes:
        arguments, auxiliary: copies of the parameters and states, or what they are to be set to once bound.
    """

    def __init__(self, names: ArgumentNames) -> None:
        self._names = names
        self.arguments: dict[str, Any] = {}
        self.auxiliary: dict[str, Any] = {}
        self._copied_from: WriteCount | None = None
        self._copied_at = -1

    def initialize(
        self,
        binding: Binding,
        attrs: Mapping[str, Mapping[str, str]],
        initializer: Any,
        arg_params: Values | None,
        aux_params: Values | None,
        allow_missing: bool,
    ) -> None:
        """Set all bound arrays: from the values given by name, the rest by the initializer.

        Raises:
            RuntimeError: a given dict lacks a name, without `allow_missing`.
            ValueShapeError: a value of another shape.
            ValueError: a name that the initializer has no rule for.
        """
        bound = binding.executors
        for arrays, names, values in (
            (bound.args, self._names.parameters, arg_params),
            (bound.aux, self._names.auxiliary, aux_params),
        ):
            for name in sorted(names):
                if values is not None and name in values:
                    arrays[name]._fill(values[name], name)
                elif values is not None and not allow_missing:
                    unknown = self.unknown(arg_params, aux_params)
                    raise RuntimeError(f"{name} is not presented: {unknown or self._remedy(name)}")
                elif initializer is not None:
                    try:
                        initializer(InitDesc(name, attrs.get(name)), arrays[name])
                    except ValueError as error:
                        raise self._names.label_error(name) or error from None
        binding.spread_parameters()
        bound.writes.value += 1

    def _remedy(self, name: str) -> str:
        """Handle an argument or state that the values lack."""
        kind = "aux_params" if name in self._names.auxiliary else "arg_params"
        if kind == "arg_params" and name not in self._names.labels and name.endswith("_label"):
            return f"it looks like the label: allow_missing=True leaves it out, label_names=[{name!r}] feeds it"
        return f"add it to {kind}, or let allow_missing=True leave it to the initializer"

    def unknown(self, arg_params: Values | None, aux_params: Values | None) -> str | None:
        """Return a sentence about the first name that the symbol lacks; None if it has all."""
        known: Iterable[tuple[Values | None, list[str], str]] = (
            (arg_params, self._names.arguments, "arguments"),
            (aux_params, self._names.auxiliary, "aux states"),
        )
        for values, names, kind in known:
            for name in values or ():
                if name not in names:
                    listed = f"{', '.join(names[:5])}{', …' if len(names) > 5 else ''}" or "none"
                    return (
                        f"parameters: {name!r} is none of the {kind} ({listed}): are they of another network? "
                        "allow_extra=True leaves it out"
                    )
        return None

    def write_to(self, binding: Binding) -> None:
        """Write the copies to the bound arrays."""
        bound = binding.executors
        for arrays, values in ((bound.args, self.arguments), (bound.aux, self.auxiliary)):
            for name, array in arrays.items():
                if name in values:
                    array._fill(values[name], name)
        binding.spread_parameters()
        bound.writes.value += 1
        self._copied(bound.writes)

    def copy_from(self, binding: Binding) -> None:
        """Copy the bound arrays, of several devices their mean, unless nothing has written to them since the last copy.

        As in MXNet the copies of CPU arrays are on `cpu(0)`.
        """
        replicas, writes = binding.replicas, binding.executors.writes
        if self._copied_from is not writes or self._copied_at != writes.value:
            self.arguments = {name: _mean([one.args[name] for one in replicas]) for name in self._names.parameters}
            self.auxiliary = {name: _mean([one.aux[name] for one in replicas]) for name in self._names.auxiliary}
            self._copied(writes)

    def _copied(self, writes: WriteCount) -> None:
        """Mark the copies as current."""
        self._copied_from, self._copied_at = writes, writes.value


def _mean(arrays: list[NDArray]) -> NDArray:
    """A new array: the mean of an array's values on all devices."""
    context = cpu() if arrays[0].context.device_type == "cpu" else arrays[0].context
    if len(arrays) == 1:
        return arrays[0].copyto(context)
    total: NDArray = add_n(*(array.as_in_context(context) for array in arrays))
    mean: NDArray = total / len(arrays)
    return mean
