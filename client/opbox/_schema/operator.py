"""An operator of the catalogue, and what its parameters say about its inputs and outputs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from opbox_protocol.errors import MXNetError, ParamError, UnknownOperatorError
from opbox_protocol.mxnet import HIDDEN_KEYS, attribute_text, attribute_value, is_hidden
from opbox_protocol.near_names import near_names

from .parameters import accepts, described

__all__ = ["Operator", "extend", "find", "get", "operators", "when_learnt"]

Attrs = Mapping[str, str]
CHECKED = 256
"""Number of checked attribute sets to cache per operator."""


class Operator:
    """An operator of the catalogue.

    Attributes:
        name: the canonical name, as in files.
        aliases: its further names.
        doc: what it computes.
        params: JSON Schema by parameter, in order.
        required: the parameters without a default.
        count: the parameter that counts a variable number of inputs, or None.
        methods: the names of the methods of NDArray and Symbol that it is.
        initial: the initializers of variables that are made for inputs, by the inputs' names.
        result_shape: the outputs' shape: "first" as the first input's, "broadcast" of all inputs, "given" by the
            parameter `shape`; None when only the engine can tell.
        result_type: their type: "first" as the first input's, "first if real" when that is a floating one, "given" by
            the parameter `dtype`, "given or first".
        tensors: all inputs that it may have, in order (without their conditions).
    """

    __slots__ = (
        "_aux",
        "_checked",
        "_in",
        "_out",
        "_visible",
        "aliases",
        "count",
        "definitions",
        "differentiable",
        "doc",
        "initial",
        "methods",
        "name",
        "params",
        "required",
        "result_shape",
        "result_type",
    )

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.name: str = entry["name"]
        self.aliases: tuple[str, ...] = tuple(entry.get("aliases", ()))
        self.doc: str = entry.get("doc", "")
        model = entry.get("params", {})
        self.params: dict[str, Any] = dict(model.get("properties", {}))
        self.definitions: dict[str, Any] = dict(model.get("$defs", {}))
        self.required: tuple[str, ...] = tuple(model.get("required", ()))
        self.differentiable = bool(entry.get("differentiable", False))
        self.methods: tuple[str, ...] = tuple(entry.get("methods", ()))
        self.initial: dict[str, str] = dict(entry.get("initial", {}))
        self.result_shape: str | None = entry.get("result_shape")
        self.result_type: str | None = entry.get("result_type")
        self._checked: dict[tuple[tuple[str, str], ...], list[str]] = {}
        self._in: Any = entry.get("inputs", [])
        self._out: Any = entry.get("outputs", [{"name": "output"}])
        plain = isinstance(self._out, list) and not any("when" in s or "visible" in s for s in self._out)
        self._visible = len(self._out) if plain else None
        self.count: str | None = self._in.get("count") if isinstance(self._in, dict) else None
        # Most operators' inputs and outputs depend on no parameter.
        self._aux = None
        slots = self._in if isinstance(self._in, list) else ()
        if slots and (not any("aux" in slot for slot in slots) or not any("when" in slot for slot in slots)):
            self._aux = frozenset(i for i, slot in enumerate(self._in) if slot.get("aux"))

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"

    def __reduce__(self) -> Any:
        return get, (self.name,)

    @property
    def tensors(self) -> list[str]:
        if isinstance(self._in, dict):
            return []
        return [slot["name"] for slot in self._in]

    def _value(self, attrs: Attrs, key: str) -> Any:
        if key in attrs:
            return attribute_value(attrs[key])
        return self.params.get(key, {}).get("default")

    def _holds(self, condition: Any, attrs: Attrs) -> bool:
        if isinstance(condition, bool) or condition is None:
            return condition is not False
        return self._value(attrs, condition["param"]) in condition["in"]

    def counted(self, inputs: int) -> int:
        """The value of the parameter `count` for so many inputs."""
        if isinstance(self._in, dict) and "parts" in self._in:
            return max(inputs - len(self._in["last"]), 0) // len(self._in["parts"])
        return inputs + (self._in.get("less", 0) if isinstance(self._in, dict) else 0)

    def input_names(self, attrs: Attrs) -> list[str]:
        """The names of the inputs in order, auxiliary states included."""
        if isinstance(self._in, dict):
            if "instead" in self._in and self._holds(self._in["when"], attrs):
                return list(self._in["instead"])
            if self.count:
                number = self._value(attrs, self.count)
                if "parts" in self._in:
                    groups = [f"{part}_{i}" for i in range(int(number or 0)) for part in self._in["parts"]]
                    return [*groups, *self._in["last"]]
                number = int(number or 0) - self._in.get("less", 0)
                return [f"{self._in.get('prefix', 'arg')}{i}" for i in range(number)]
            raise self._untold("inputs")
        return [slot["name"] for slot in self._in if self._holds(slot.get("when"), attrs)]

    def aux_indices(self, attrs: Attrs) -> frozenset[int]:
        """Positions of the auxiliary states among the inputs."""
        if self._aux is not None:
            return self._aux
        if isinstance(self._in, dict) and "parts" in self._in:
            parts, count = self._in["parts"], int(self._value(attrs, self._in["count"]) or 0)
            own = [k for k, part in enumerate(parts) if part in self._in["aux"]]
            return frozenset(i * len(parts) + k for i in range(count) for k in own)
        if isinstance(self._in, dict):
            return frozenset()
        present = [slot for slot in self._in if self._holds(slot.get("when"), attrs)]
        return frozenset(i for i, slot in enumerate(present) if slot.get("aux"))

    def arranged(
        self, tensors: Sequence[Any], named: Mapping[str, Any], params: Mapping[str, Any]
    ) -> tuple[dict[str, str], list[Any]]:
        """The attributes of a call, checked, and its inputs in order.

        Args:
            tensors: inputs by position.
            named: inputs by name.
            params: parameters, of any type.

        Raises:
            ParamError: an unknown, missing or unfit parameter or input.
        """
        if self.count is not None and self.count not in params:
            params = {**params, self.count: self.counted(len(tensors) + len(named))}
        attrs = {key: attribute_text(value) for key, value in params.items()}
        recurring = tuple(attrs.items())
        names = self._checked.get(recurring)
        if names is None:
            self.check(attrs)
            names = self.input_names(attrs)
            if len(self._checked) >= CHECKED:
                self._checked.clear()
            self._checked[recurring] = names
        for key in named:
            if key not in names:
                raise ParamError(f"{self.name}: unknown input {key!r}: expected {', '.join(names) or 'none'}")
        if self.count is not None:
            return attrs, [*tensors, *(named[name] for name in names[len(tensors) :] if name in named)]
        for name in names:
            if name not in named:
                raise ParamError(f"{self.name}: input {name!r} is missing: expected {', '.join(names)}")
        return attrs, [named[name] for name in names]

    def _untold(self, what: str) -> MXNetError:
        return MXNetError(f"{self.name}: expected {what} that the catalogue declares, got a function of the parameters")

    def output_names(self, attrs: Attrs) -> list[str]:
        """The suffixes of the outputs in order, hidden ones included."""
        if isinstance(self._out, dict):
            if "count" not in self._out:
                raise self._untold("outputs")
            prefix, number = self._out.get("prefix", "output"), int(self._value(attrs, self._out["count"]) or 0)
            if "begins" in self._out:
                begins = tuple(self._value(attrs, self._out["begins"]) or ())
                number = number or len(begins) + (begins[:1] != (0,))
            if number == 1 and ("begins" in self._out or "alone" in self._out):
                return [prefix]
            return [f"{prefix}{i}" for i in range(number)]
        return [slot["name"] for slot in self._out if self._holds(slot.get("when"), attrs)]

    @property
    def makes_one(self) -> bool:
        """True if a call that gives no parameters but the required ones has one output."""
        if isinstance(self._out, dict):
            return False
        return self.visible_outputs({}) == 1

    def num_outputs(self, attrs: Attrs) -> int:
        """Return the number of outputs, hidden ones included."""
        return self._visible if self._visible is not None else len(self.output_names(attrs))

    def visible_outputs(self, attrs: Attrs) -> int:
        """Return the number of outputs that other operators may use."""
        if self._visible is not None:
            return self._visible
        if isinstance(self._out, dict):
            return len(self.output_names(attrs))
        present = [slot for slot in self._out if self._holds(slot.get("when"), attrs)]
        return sum(1 for slot in present if self._holds(slot.get("visible"), attrs))

    def check(self, attrs: Attrs, node: str | None = None) -> None:
        """Raise ParamError for unknown, missing or unfit parameters; hidden attributes (`__…__`) are free."""
        for key, text in attrs.items():
            if key not in self.params:
                if not is_hidden(key):
                    self._fail(f"unknown parameter {key!r}; {self._near(key)}", node)
            elif not accepts(text, self.params[key], self.definitions):
                expected = described(self.params[key], self.definitions)
                self._fail(f"parameter {key!r}: expected {expected}, got {text!r}", node)
        for key in self.required:
            if key not in attrs:
                expected = described(self.params[key], self.definitions)
                self._fail(f"parameter {key!r} is required: {expected}", node)

    def _near(self, key: str) -> str:
        known = [*self.tensors, *self.params]
        near = difflib.get_close_matches(key, known, n=3)
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"it takes {', '.join(known) or 'none'}"

    def _fail(self, message: str, node: str | None) -> None:
        place = f"{node} ({self.name})" if node else self.name
        raise ParamError(f"{place}: {message}", node=node)

    def scoped(self, key: str) -> str:
        """The key under which an attribute given to this operator's function is kept: `lr_mult` as `__lr_mult__`."""
        return f"__{key}__" if key not in self.params and key.startswith(HIDDEN_KEYS) else key


_operators: dict[str, Operator] = {}
_names: dict[str, Operator] = {}
_listeners: list[Callable[[Operator], None]] = []


def extend(entries: Iterable[Mapping[str, Any]]) -> list[Operator]:
    """Add operators (entries of `GET /v1/ops`) to those known; the ones of the same name are replaced."""
    _load()
    return _add(entries)


def _add(entries: Iterable[Mapping[str, Any]]) -> list[Operator]:
    added = []
    for entry in entries:
        op = Operator(entry)
        replaced = _operators.get(op.name)
        for name in replaced.aliases if replaced is not None else ():
            if _names.get(name) is replaced:
                del _names[name]
        _operators[op.name] = op
        for name in (op.name, *op.aliases):
            _names[name] = op
        for listener in _listeners:
            listener(op)
        added.append(op)
    return added


def when_learnt(listener: Callable[[Operator], None]) -> None:
    """Call `listener` with each operator that is added from now on."""
    _listeners.append(listener)


@lru_cache(maxsize=1)
def _load() -> None:
    text = resources.files(__package__).joinpath("operators.json").read_text(encoding="utf-8")
    _add(json.loads(text)["operators"])


def operators() -> list[Operator]:
    """All operators, by name."""
    _load()
    return [op for _, op in sorted(_operators.items())]


def find(name: str) -> Operator | None:
    """The operator of that name or alias, or None."""
    _load()
    return _names.get(name)


def get(name: str) -> Operator:
    """The operator of that name or alias.

    Raises:
        UnknownOperatorError: there is none; the message has the nearest names.
    """
    op = _names.get(name) or find(name)
    if op is None:
        near = near_names(name, _names)
        hint = f"did you mean {' or '.join(near)}?" if near else "mx.refresh_operators() asks the engine for its own"
        raise UnknownOperatorError(f"operator {name!r} is unknown: {hint}")
    return op
