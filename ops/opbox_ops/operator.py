"""The class of an operator: a name, a parameter model, declared inputs and outputs, and open attributes.

Inputs and outputs are declared as data where that will do (`slots`); a function of the params is possible everywhere.
`registry` keeps operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from opbox_protocol.errors import ConflictError, ParamError, UnsupportedError

from . import trust
from .compute import (
    LEVELS,
    CallSpec,
    ChooseRule,
    Compute,
    Kernel,
    RebindRule,
    SavesRule,
    TempsRule,
    checked_level,
    rank_of,
)
from .infer import ShapeRule, TypeRule, all_same_type, show_shape
from .node import Entry, Node
from .params import MAX_COUNT, Params
from .slots import Counted, Inputs, Outputs, Variadic, fixed_slots, slots_of

__all__ = ["GradientRule", "Op"]

DEVICES = ("cpu", "gpu")

GradientRule: TypeAlias = "Callable[[Node, list[Entry]], Sequence[Entry | None]]"


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
        self.inputs = slots_of(inputs)
        self.outputs = slots_of(outputs)
        self.aliases = tuple(aliases)
        self.doc = doc
        self._attrs: dict[str, tuple[Any, int]] = {}
        self._fixed_inputs, self._fixed_outputs = fixed_slots(self.inputs), fixed_slots(self.outputs)
        self._fixed_aux = [i for i, slot in enumerate(self._fixed_inputs or ()) if slot.aux]

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
        entry = self._attrs.get(key)
        return default if entry is None else entry[0]

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
        level: str = LEVELS[0],
        accepts: Callable[[Any, CallSpec], bool] | None = None,
        temps: TempsRule | None = None,
        accumulates: bool = False,
        prepares: bool = False,
        allocates: str = "",
        rebind: RebindRule | None = None,
        saves: SavesRule | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: a compute of one function for `devices`; for both when none is named. See `compute`.

        Args:
            devices: "cpu", "gpu".
            level: "reference", "library" or "generated"; the highest that accepts a call runs it.
            accepts: `(p, call)`: whether it can run this call; without it, every call of "plain" arrays.
            temps: `(p, call)` to the temporary arrays that the compute finds in `ctx.temp`.
            accumulates: whether it adds to an output on its own where `ctx.req` says ADD.
            prepares: whether the function returns a call to run, made once for the arrays it is given.
            allocates: why the compute allocates memory when it runs; empty: it does not.
            rebind: makes a call for any arrays of the same shapes and types; see `Kernel`.
            saves: for operators with subgraphs: `(p, call)` to the bytes that forward leaves for backward.

        Raises:
            ConflictError: a compute of this level takes every call already, so this one would never run.

        Example:
            >>> @registry.extend("Convolution").compute("cpu", level="library", accepts=is_float32)
            ... def _(p, ctx, inputs, outputs): ...
        """

        def attach(function: Callable[..., Any]) -> Callable[..., Any]:
            self._check_arguments("compute", function, ("p", "ctx", "inputs", "outputs"))
            bind, run = (function, None) if prepares else (partial(partial, function), function)

            def rule(p: Any, call: CallSpec) -> Kernel | None:
                if not (call.plain if accepts is None else accepts(p, call)):
                    return None
                scratch = () if temps is None else tuple(temps(p, call))
                return Kernel(bind, scratch, (), rebind, run, accumulates, saves)

            self._add_compute(devices, Compute(rule, checked_level(level), allocates, accepts is None), function)
            return function

        return attach

    def kernel(
        self, *devices: str, level: str = LEVELS[0], allocates: str = "", last: bool = False
    ) -> Callable[[ChooseRule], ChooseRule]:
        """Decorator: a compute for `devices` that chooses a kernel for each call; for both when none is named.

        The function `(p, call)` returns the `Kernel` that runs the call, or None where it does not take it. It is asked
        for calls of every layout, once for calls that are alike.

        Args:
            devices: "cpu", "gpu".
            level: "reference", "library" or "generated"; the highest that accepts a call runs it.
            allocates: why its kernels allocate memory when they run; empty: they do not.
            last: whether it is asked behind all others of its level, those registered later too.

        Raises:
            ConflictError: a compute of this level takes every call already, so this one would never run.

        Example:
            >>> @registry.extend("Pooling").kernel("cpu", level="library")
            ... def _(p, call):
            ...     kernel = pooling_kernel(p, call)
            ...     return None if kernel is None else Kernel(partial(bind, kernel), kernel.temps)
        """

        def attach(rule: ChooseRule) -> ChooseRule:
            self._check_arguments("kernel's choice", rule, ("p", "call"))
            self._add_compute(devices, Compute(rule, checked_level(level), allocates, last=last), rule)
            return rule

        return attach

    def _check_arguments(self, what: str, function: Callable[..., Any], names: tuple[str, ...]) -> None:
        code = getattr(function, "__code__", None)
        if (
            code is not None
            and code.co_argcount == len(names)
            and not (function.__defaults__ or code.co_kwonlyargcount)
        ):
            return  # as almost all are: a signature of each would be a tenth of what loading the operators takes
        parameters = inspect.signature(function).parameters.values()
        count = sum(parameter.default is parameter.empty for parameter in parameters)
        if count != len(names) and not any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters):
            raise ConflictError(
                f"{self.name}: expected a {what} of {len(names)} arguments ({', '.join(names)}), got one of {count}"
            )

    def _add_compute(self, devices: Sequence[str], compute: Compute, function: Callable[..., Any]) -> None:
        for device in devices or DEVICES:
            name = trust.compute_name(self.name, function) if device == "gpu" and compute.rank else None
            if name is not None:
                self._add_for(device, replace(compute, rule=trust.guarded(name, compute.rule), name=name))
            else:
                self._add_for(device, compute)

    def _add_for(self, device: str, compute: Compute) -> None:
        present = self.computes(device)
        if any(other.level == compute.level and other.takes_all for other in present):
            raise ConflictError(
                f"{self.name}: a {compute.level} compute for {device!r} takes every call already: expected another "
                "level for one more"
            )
        ordered = sorted((*present, compute), key=lambda item: (-item.rank, item.last))
        self._attrs[f"FCompute<{device}>"] = (tuple(ordered), 10)

    def inplace(self, *pairs: tuple[int, int]) -> Op:
        """FInplaceOption: (input, output) pairs that may share memory."""
        return self.set_attr("FInplaceOption", pairs)

    # -- asking -------------------------------------------------------------------------------------------------

    def parse(self, attrs: Mapping[str, Any]) -> Params:
        """The typed parameters in `attrs`; ParamError says what is wrong with them."""
        params = self.params.parse(self.name, attrs)
        for declared in (self.inputs, self.outputs):
            if isinstance(declared, Variadic | Counted) and getattr(params, declared.count) > MAX_COUNT:
                raise ParamError(
                    f"{self.name}: parameter {declared.count!r}: expected at most {MAX_COUNT:,}, "
                    f"got {getattr(params, declared.count):,}"
                )
        return params

    def input_names(self, params: Any) -> list[str]:
        """Argument names in order, auxiliary states included."""
        if isinstance(self.inputs, Variadic):
            return self.inputs.names(params)
        if callable(self.inputs):
            return list(self.inputs(params))
        return [slot.name for slot in self.inputs if slot.present is None or slot.present.holds(params)]

    def aux_indices(self, params: Any) -> list[int]:
        """Positions of the auxiliary states among the inputs (NNVM's FMutateInputs)."""
        rule = self.get_attr("FMutateInputs")
        if rule is not None:
            return list(rule(params))
        if self._fixed_inputs is not None:
            return self._fixed_aux.copy()
        if isinstance(self.inputs, Variadic):
            return self.inputs.aux_positions(params)
        if callable(self.inputs):
            return []
        present = [slot for slot in self.inputs if slot.present is None or slot.present.holds(params)]
        return [i for i, slot in enumerate(present) if slot.aux]

    def num_inputs(self, params: Any) -> int:
        """Return the number of inputs, auxiliary states included."""
        if self._fixed_inputs is not None:
            return len(self._fixed_inputs)
        return len(self.input_names(params))

    def output_names(self, params: Any) -> list[str]:
        """Output suffixes in order, hidden ones included."""
        if isinstance(self.outputs, Counted):
            return self.outputs.names(params)
        if callable(self.outputs):
            return list(self.outputs(params))
        return [slot.name for slot in self.outputs if slot.present is None or slot.present.holds(params)]

    def num_outputs(self, params: Any) -> int:
        """Return the number of outputs, hidden ones included."""
        if self._fixed_outputs is not None:
            return len(self._fixed_outputs)
        return len(self.output_names(params))

    def num_visible_outputs(self, params: Any) -> int:
        """Return the number of outputs that other operators may use."""
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
        """True if shapes and types come from the forward node (TIsBackward)."""
        return bool(self.get_attr("TIsBackward", False))

    def computes(self, device: str) -> tuple[Compute, ...]:
        """The computes for "cpu" or "gpu", in the order they are asked."""
        computes: tuple[Compute, ...] = self.get_attr(f"FCompute<{device}>", ())
        return computes

    def choose(self, p: Any, call: CallSpec, level: str | None = None) -> Kernel:
        """The kernel that runs `call`; see `find_kernel`.

        Raises:
            UnsupportedError: there is none.
        """
        kernel = self.find_kernel(p, call, level)
        if kernel is not None:
            return kernel
        if not self.computes(call.device):
            raise UnsupportedError(f"the operator has no compute for device {call.device!r}")
        arrays = ", ".join(f"{array.dtype} {show_shape(array.shape)}" for array in call.inputs) or "no inputs"
        raise UnsupportedError(f"none of the operator's computes for device {call.device!r} takes {arrays}")

    def find_kernel(self, p: Any, call: CallSpec, level: str | None = None) -> Kernel | None:
        """The kernel of the first compute that takes `call`, of those whose level is at most `level`; None: none does.

        Args:
            p: the parsed parameters.
            call: device, inputs and outputs.
            level: the highest level to use; by default what OPBOX_COMPUTE_LEVEL says.
        """
        cap = rank_of(level)
        for compute in self.computes(call.device):
            if compute.rank <= cap and (kernel := compute.choose(p, call)) is not None:
                return kernel
        return None

    def json(self) -> dict[str, Any]:
        """The operator for the catalogue: names, conditions, JSON Schema of the params."""
        fields: dict[str, Any] = {"name": self.name, "aliases": list(self.aliases), "doc": self.doc}
        for key, declared in (("inputs", self.inputs), ("outputs", self.outputs)):
            if isinstance(declared, Variadic | Counted):
                fields[key] = declared.json()
            elif callable(declared):
                fields[key] = {"dynamic": True}
            else:
                fields[key] = [slot.json() for slot in declared]
        fields["params"] = self.params.model_json_schema()
        optional = {
            "methods": list(self.get_attr("TMethods", ())),
            "initial": self.get_attr("FSetInputVarAttrOnCompose"),
            "result_shape": getattr(self.shape_rule, "summary", None),
            "result_type": getattr(self.type_rule, "summary", None),
        }
        fields |= {key: value for key, value in optional.items() if value}
        fields["differentiable"] = self.get_attr("FGradient") is not None
        fields["devices"] = [device for device in DEVICES if self.computes(device)]
        fields["levels"] = {
            device: list(dict.fromkeys(compute.level for compute in self.computes(device)))
            for device in fields["devices"]
        }
        return fields
