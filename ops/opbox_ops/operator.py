"""What an operator is: a name, a parameter model, declared inputs and outputs, and open attributes.

Inputs and outputs are declared as data where that will do (`Slot`, `Variadic`, `Counted`), so that the catalogue can
tell a client how to name and count them; a function of the params is possible everywhere. `registry` keeps operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .compute import ArraySpec, CallSpec, Compute, Temp, writing
from .errors import ConflictError
from .infer import ShapeRule, TypeRule, all_same_type
from .node import Entry, Node
from .params import Params

__all__ = ["Counted", "GradientRule", "Inputs", "Op", "Outputs", "Slot", "Variadic", "When", "unless", "when"]

DEVICES = ("cpu", "gpu")


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
        told: dict[str, Any] = {"name": self.name}
        if self.present is not None:
            told["when"] = self.present.json()
        if self.aux:
            told["aux"] = True
        if isinstance(self.visible, When):
            told["visible"] = self.visible.json()
        elif not self.visible:
            told["visible"] = False
        if self.doc:
            told["doc"] = self.doc
        return told


@dataclass(frozen=True, slots=True)
class Variadic:
    """As many inputs as the parameter `count` says, named `prefix` and their position: arg0, arg1, …"""

    count: str = "num_args"
    prefix: str = "arg"

    def json(self) -> dict[str, Any]:
        return {"count": self.count, "prefix": self.prefix}


@dataclass(frozen=True, slots=True)
class Counted:
    """As many outputs as the parameter `count` says, named `prefix` and their position: output0, output1, …"""

    count: str
    prefix: str = "output"

    def json(self) -> dict[str, Any]:
        return {"count": self.count, "prefix": self.prefix}


Inputs: TypeAlias = "Sequence[str | Slot] | Variadic | Callable[[Any], Sequence[str]]"
Outputs: TypeAlias = "Sequence[str | Slot] | Counted | Callable[[Any], Sequence[str]]"
GradientRule: TypeAlias = "Callable[[Node, list[Entry]], Sequence[Entry | None]]"


def _slots(declared: Any) -> Any:
    if isinstance(declared, Variadic | Counted) or callable(declared):
        return declared
    return tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in declared)


class Op:
    """An operator: name, parameter model, declared inputs and outputs, and open attributes.

    Made by `register`. The decorators (`infer_shape`, `gradient`, `compute`, …) set the attributes that the passes
    read; `set_attr` sets any other.
    """

    def __init__(
        self, name: str, params: type[Params], inputs: Inputs, outputs: Outputs, aliases: Sequence[str], doc: str
    ) -> None:
        self.name = name
        self.params = params
        self.inputs = _slots(inputs)
        self.outputs = _slots(outputs)
        self.aliases = tuple(aliases)
        self.doc = doc
        self._attrs: dict[str, tuple[Any, int]] = {}

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    # -- open attributes ----------------------------------------------------------------------------------------

    def set_attr(self, key: str, value: Any, level: int = 10) -> Op:
        """Set attribute `key`; a higher `level` overrides a lower one, the same level twice is a ConflictError."""
        if key in self._attrs:
            present = self._attrs[key][1]
            if present == level:
                raise ConflictError(
                    f"{self.name}: attribute {key!r} is set already; give a higher level to override it"
                )
            if present > level:
                return self
        self._attrs[key] = (value, level)
        return self

    def get_attr(self, key: str, default: Any = None) -> Any:
        """The value of attribute `key`, or `default`."""
        held = self._attrs.get(key)
        return default if held is None else held[0]

    def attr_keys(self) -> list[str]:
        """The keys that are set."""
        return sorted(self._attrs)

    # -- declaring ----------------------------------------------------------------------------------------------

    def infer_shape(self, rule: ShapeRule) -> ShapeRule:
        """Decorator: FInferShape."""
        self.set_attr("FInferShape", rule)
        return rule

    def infer_type(self, rule: TypeRule) -> TypeRule:
        """Decorator: FInferType. Without one, every input and output has one type."""
        self.set_attr("FInferType", rule)
        return rule

    def gradient(self, rule: GradientRule) -> GradientRule:
        """Decorator: FGradient: `(node, output gradients)` to one entry (or None for zero) an input."""
        self.set_attr("FGradient", rule)
        return rule

    def compute(
        self,
        *devices: str,
        temps: Callable[[Any, CallSpec], Sequence[Temp]] | None = None,
        allocates: str = "",
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Decorator: FCompute for `devices`; for both when none is named.

        Args:
            devices: "cpu", "gpu".
            temps: `(p, call)` to the temporary arrays that the compute finds in `ctx.temp`.
            allocates: why the compute allocates memory when it runs; empty: it does not.
        """

        def attach(function: Callable[..., None]) -> Callable[..., None]:
            writes = len(inspect.signature(function).parameters) == 4
            for device in devices or DEVICES:
                self.set_attr(f"FCompute<{device}>", writing(function) if writes else function)
            if temps is not None:

                def rule(p: Any, shapes: Any, types: Any, out_shapes: Any, out_types: Any) -> Sequence[Temp]:
                    ins = tuple(map(ArraySpec, shapes, types))
                    outs = tuple(map(ArraySpec, out_shapes, out_types))
                    return temps(p, CallSpec((devices or DEVICES)[0], ins, outs))

                self.set_attr("FResourceRequest", rule)
            if allocates:
                self.set_attr("TAllocates", allocates)
            return function

        return attach

    def resources(self, rule: Callable[..., Sequence[Temp]]) -> Callable[..., Sequence[Temp]]:
        """Decorator: FResourceRequest: `(p, in_shapes, in_types, out_shapes, out_types)` to temporaries."""
        self.set_attr("FResourceRequest", rule)
        return rule

    def inplace(self, *pairs: tuple[int, int]) -> Op:
        """FInplaceOption: (input, output) pairs that may share memory."""
        return self.set_attr("FInplaceOption", pairs)

    # -- asking -------------------------------------------------------------------------------------------------

    def parse(self, attrs: Mapping[str, Any]) -> Params:
        """The typed parameters in `attrs`; ParamError says what is wrong with them."""
        return self.params.parse(self.name, attrs)

    def input_names(self, params: Any) -> list[str]:
        """Argument names in order, auxiliary states included."""
        if isinstance(self.inputs, Variadic):
            return [f"{self.inputs.prefix}{i}" for i in range(getattr(params, self.inputs.count))]
        if callable(self.inputs):
            return list(self.inputs(params))
        return [slot.name for slot in self.inputs if slot.present is None or slot.present.holds(params)]

    def aux_indices(self, params: Any) -> list[int]:
        """Positions of the auxiliary states among the inputs (NNVM's FMutateInputs)."""
        rule = self.get_attr("FMutateInputs")
        if rule is not None:
            return list(rule(params))
        if isinstance(self.inputs, Variadic) or callable(self.inputs):
            return []
        present = [slot for slot in self.inputs if slot.present is None or slot.present.holds(params)]
        return [i for i, slot in enumerate(present) if slot.aux]

    def num_inputs(self, params: Any) -> int:
        """How many inputs, auxiliary states included."""
        return len(self.input_names(params))

    def output_names(self, params: Any) -> list[str]:
        """Output suffixes in order, hidden ones included."""
        if isinstance(self.outputs, Counted):
            return [f"{self.outputs.prefix}{i}" for i in range(getattr(params, self.outputs.count))]
        if callable(self.outputs):
            return list(self.outputs(params))
        return [slot.name for slot in self.outputs if slot.present is None or slot.present.holds(params)]

    def num_outputs(self, params: Any) -> int:
        """How many outputs, hidden ones included."""
        return len(self.output_names(params))

    def num_visible_outputs(self, params: Any) -> int:
        """How many outputs other operators may use."""
        rule = self.get_attr("FNumVisibleOutputs")
        if rule is not None:
            return int(rule(params))
        if isinstance(self.outputs, Counted) or callable(self.outputs):
            return self.num_outputs(params)
        return sum(1 for s in self.outputs if (s.present is None or s.present.holds(params)) and s.is_visible(params))

    @property
    def shape_rule(self) -> ShapeRule | None:
        rule: ShapeRule | None = self.get_attr("FInferShape")
        return rule

    @property
    def type_rule(self) -> TypeRule:
        rule: TypeRule = self.get_attr("FInferType", all_same_type)
        return rule

    @property
    def is_backward(self) -> bool:
        """Whether its shapes and types come from its forward node (TIsBackward)."""
        return bool(self.get_attr("TIsBackward", False))

    def compute_for(self, device: str) -> Compute | None:
        """The compute for "cpu" or "gpu", or None."""
        function: Compute | None = self.get_attr(f"FCompute<{device}>")
        return function

    def json(self) -> dict[str, Any]:
        """The operator for the catalogue: names, conditions, JSON Schema of the params."""
        told: dict[str, Any] = {"name": self.name, "aliases": list(self.aliases), "doc": self.doc}
        for key, declared in (("inputs", self.inputs), ("outputs", self.outputs)):
            if isinstance(declared, Variadic | Counted):
                told[key] = declared.json()
            elif callable(declared):
                told[key] = {"dynamic": True}
            else:
                told[key] = [slot.json() for slot in declared]
        told["params"] = self.params.model_json_schema()
        told["differentiable"] = self.get_attr("FGradient") is not None
        told["devices"] = [device for device in DEVICES if self.compute_for(device) is not None]
        return told
