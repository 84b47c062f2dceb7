"""Declared inputs and outputs of operators, as data: a client reads in the catalogue how to name and count them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Counted", "Inputs", "Outputs", "Slot", "Variadic", "When", "fixed_slots", "slots_of", "unless", "when"]


@dataclass(frozen=True, slots=True)
class When:
    """A condition on the params: `param` has one of `values`."""

    param: str
    values: tuple[Any, ...]

    def holds(self, params: Any) -> bool:
        return getattr(params, self.param) in self.values

    def json(self) -> dict[str, Any]:
        return {"param": self.param, "in": list(self.values)}


def when(param: str, *values: Any) -> When:
    """Present when `param` has one of `values` (True when none are given)."""
    return When(param, values or (True,))


def unless(param: str) -> When:
    """Present unless the boolean `param` is set."""
    return When(param, (False, None))


@dataclass(frozen=True, slots=True)
class Slot:
    """A declared input or output.

    Attributes:
        name: the argument's name, or the output's suffix (`output`, `mean`).
        present: a condition on the params; None: always there.
        aux: an auxiliary state (an input that forward writes).
        visible: for outputs: True, False, or a condition; hidden outputs come last and cannot be composed with.
        doc: one sentence for the catalogue.
    """

    name: str
    present: When | None = None
    aux: bool = False
    visible: bool | When = True
    doc: str = ""

    def is_visible(self, params: Any) -> bool:
        return self.visible.holds(params) if isinstance(self.visible, When) else self.visible

    def json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name}
        if self.present is not None:
            fields["when"] = self.present.json()
        if self.aux:
            fields["aux"] = True
        if isinstance(self.visible, When):
            fields["visible"] = self.visible.json()
        elif not self.visible:
            fields["visible"] = False
        if self.doc:
            fields["doc"] = self.doc
        return fields


@dataclass(frozen=True, slots=True)
class Variadic:
    """As many inputs as the parameter `count` says, named `prefix` and their position: arg0, arg1, …

    Where the condition `where` holds, they are those named `instead`. With `parts`, `count` counts groups of inputs,
    each named by its part and the group's number, `weight_0, grad_0, weight_1, …`; the parts in `aux` are states,
    and the inputs named `last` follow once. `less` of what `count` counts are no inputs, but subgraphs.
    """

    count: str = "num_args"
    prefix: str = "arg"
    instead: tuple[str, ...] = ()
    where: When | None = None
    parts: tuple[str, ...] = ()
    aux: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    less: int = 0

    def names(self, params: Any) -> list[str]:
        if self.where is not None and self.where.holds(params):
            return list(self.instead)
        numbers = range(getattr(params, self.count) - self.less)
        if self.parts:
            return [*(f"{part}_{i}" for i in numbers for part in self.parts), *self.last]
        return [f"{self.prefix}{i}" for i in numbers]

    def aux_positions(self, params: Any) -> list[int]:
        """Positions of the auxiliary states among the inputs."""
        size = len(self.parts)
        own = [k for k, part in enumerate(self.parts) if part in self.aux]
        return [i * size + k for i in range(getattr(params, self.count) if own else 0) for k in own]

    def json(self) -> dict[str, Any]:
        declared: dict[str, Any] = {"count": self.count, "prefix": self.prefix}
        if self.where is not None:
            declared |= {"instead": list(self.instead), "when": self.where.json()}
        if self.parts:
            declared |= {"parts": list(self.parts), "aux": list(self.aux), "last": list(self.last)}
        if self.less:
            declared["less"] = self.less
        return declared


@dataclass(frozen=True, slots=True)
class Counted:
    """As many outputs as the parameter `count` says, named `prefix` and their position: output0, output1, …

    Where `count` is 0, they begin at the positions in the parameter `begins`, and one at 0; a single one has no number.
    With `alone`, a single one has no number either.
    """

    count: str
    prefix: str = "output"
    begins: str = ""
    alone: bool = False

    def names(self, params: Any) -> list[str]:
        count = getattr(params, self.count)
        if self.begins:
            positions = getattr(params, self.begins)
            count = count or len(positions) + (0 if positions[:1] == (0,) else 1)
        if count == 1 and (self.begins or self.alone):
            return [self.prefix]
        return [f"{self.prefix}{i}" for i in range(count)]

    def json(self) -> dict[str, Any]:
        declared: dict[str, Any] = {"count": self.count, "prefix": self.prefix}
        if self.alone:
            declared["alone"] = True
        return {**declared, "begins": self.begins} if self.begins else declared


Inputs: TypeAlias = "Sequence[str | Slot] | Variadic | Callable[[Any], Sequence[str]]"
Outputs: TypeAlias = "Sequence[str | Slot] | Counted | Callable[[Any], Sequence[str]]"


def slots_of(declared: Any) -> Any:
    """Return the declared slots, with a Slot in place of each bare name."""
    if isinstance(declared, Variadic | Counted) or callable(declared):
        return declared
    return tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in declared)


def fixed_slots(declared: Any) -> tuple[Slot, ...] | None:
    """The declared slots, where they are the same whatever the params."""
    if isinstance(declared, tuple) and all(slot.present is None for slot in declared):
        return declared
    return None
