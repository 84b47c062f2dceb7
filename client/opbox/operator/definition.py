"""The code behind a node of a user's operator: a class of this program, or source from a file.

A `CustomOperator` takes the place of the catalogue's Operator in such a node: it names inputs and outputs. For a class
that is here it asks the class; for source from a file it knows the names from the file, and runs nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opbox_protocol.errors import MXNetError, ParamError
from opbox_protocol.mxnet import STATE_INITIALIZERS, is_hidden

from .._schema.operator import Operator
from .bundle import Bundle
from .custom import prop_class
from .gather import gather
from .instances import rebuilt
from .keywords import make_prop

__all__ = [
    "CUSTOM",
    "KINDS",
    "CustomOperator",
    "Definition",
    "Signature",
    "find",
    "own_parameters",
    "registered",
    "remember",
]

CUSTOM = "Custom"
KINDS = (CUSTOM, "_NumpyOp", "_NDArrayOp")
"""The operators whose code users bring, as symbol JSON names them."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The names of an operator's inputs, auxiliary states and outputs."""

    arguments: tuple[str, ...]
    auxiliary_states: tuple[str, ...]
    outputs: tuple[str, ...]

    def json(self) -> dict[str, list[str]]:
        """As `-ops.json` keeps it."""
        return {
            "arguments": list(self.arguments),
            "auxiliary_states": list(self.auxiliary_states),
            "outputs": list(self.outputs),
        }

    @classmethod
    def from_json(cls, entry: Any) -> Signature:
        """Read an entry that `json` wrote; MXNetError when it is anything else."""
        keys = ("arguments", "auxiliary_states", "outputs")
        try:
            lists = [entry[key] for key in keys]
        except (KeyError, TypeError):
            lists = [None]
        if not all(isinstance(listed, list) and all(isinstance(name, str) for name in listed) for listed in lists):
            raise MXNetError("operator sources: expected the names of arguments, auxiliary_states and outputs")
        return cls(*(tuple(listed) for listed in lists))


_numbers = itertools.count(1)
_live: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


class Definition:
    """The source of one operator.

    Args:
        kind: one of KINDS.
        name: its op_type.
        cls: the class; None when only the source is here.
        bundle: the source, for that case.
    """

    def __init__(self, kind: str, name: str, cls: type | None = None, bundle: Bundle | None = None) -> None:
        self.kind = kind
        self.name = name
        self.cls = cls
        self._bundle = bundle

    def __repr__(self) -> str:
        return f"<Definition {self.kind} {self.name}>"

    def source(self, *, fresh: bool = True) -> Bundle:
        """Its source, as the values that it names are now; or, not `fresh`, as they were when it was last asked for.

        Raises:
            SourceError: it cannot be had.
        """
        if self._bundle is None or (fresh and self.cls is not None):
            assert self.cls is not None
            self._bundle = gather(self.cls)
        return self._bundle

    def live_code(self) -> str:
        """Return the name of the class for an engine of this process."""
        assert self.cls is not None
        if self.cls not in _live:
            _live[self.cls] = next(_numbers)
        return f"live:{_live[self.cls]}"


def own_parameters(attrs: Mapping[str, str]) -> dict[str, str]:
    """The keyword arguments of a Prop among a node's attributes."""
    return {key: text for key, text in attrs.items() if key != "op_type" and not is_hidden(key)}


class CustomOperator(Operator):
    """A user's operator, as nodes refer to it.

    Args:
        definition: its code.
        signature: its names, where they are known without asking the class.
    """

    __slots__ = ("_asked", "_signature", "definition")

    def __init__(self, definition: Definition, signature: Signature | None = None) -> None:
        doc = f"{definition.name}, an operator of the user's own."
        super().__init__({"name": definition.kind, "doc": doc, "initial": STATE_INITIALIZERS})
        self.definition = definition
        self._signature = signature
        self._asked: dict[tuple[tuple[str, str], ...], Signature] = {}

    def signature(self, attrs: Mapping[str, str]) -> Signature:
        """Its names, for these attributes."""
        if self._signature is not None:
            return self._signature
        key = tuple(sorted(own_parameters(attrs).items()))
        if key not in self._asked:
            assert self.definition.cls is not None
            self._asked[key] = prop_signature(self.definition.name, self.definition.cls, dict(key))
        return self._asked[key]

    def input_names(self, attrs: Mapping[str, str]) -> list[str]:
        signature = self.signature(attrs)
        return [*signature.arguments, *signature.auxiliary_states]

    def aux_indices(self, attrs: Mapping[str, str]) -> frozenset[int]:
        signature = self.signature(attrs)
        return frozenset(range(len(signature.arguments), len(signature.arguments) + len(signature.auxiliary_states)))

    def output_names(self, attrs: Mapping[str, str]) -> list[str]:
        return list(self.signature(attrs).outputs)

    def num_outputs(self, attrs: Mapping[str, str]) -> int:
        return len(self.signature(attrs).outputs)

    def visible_outputs(self, attrs: Mapping[str, str]) -> int:
        return len(self.signature(attrs).outputs)

    def check(self, attrs: Mapping[str, str], node: str | None = None) -> None:
        """ParamError when the class does not take the parameters."""
        try:
            self.signature(attrs)
        except MXNetError as error:
            raise ParamError(f"{node} ({self.name}): {error}" if node else str(error), node=node) from None


def prop_signature(op_type: str, cls: type, parameters: Mapping[str, str]) -> Signature:
    """Return the names that a Prop declares.

    Raises:
        MXNetError: it tells something else than lists of strings.
    """
    prop = make_prop(op_type, cls, parameters)
    return Signature(
        *(
            _names(op_type, method, getattr(prop, method)())
            for method in ("list_arguments", "list_auxiliary_states", "list_outputs")
        )
    )


def _names(op_type: str, method: str, names: Any) -> tuple[str, ...]:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise MXNetError(f"operator {op_type!r}: {method}: expected a list of names, got {names!r}")
    return tuple(names)


def registered(op_type: Any) -> CustomOperator:
    """The operator that was registered here by that name.

    Raises:
        MXNetError: there is none.
    """
    if not isinstance(op_type, str):
        raise MXNetError(f"Custom: op_type: expected the name of a registered operator, got {op_type!r}")
    return CustomOperator(Definition(CUSTOM, op_type, prop_class(op_type)))


_native: dict[tuple[str, str], Definition] = {}


def remember(kind: str, cls: type) -> Definition:
    """The definition of a NumpyOp or NDArrayOp class, which loading a symbol finds by the class's name."""
    definition = _native.get((kind, cls.__name__))
    if definition is None or definition.cls is not cls:
        definition = _native[kind, cls.__name__] = Definition(kind, cls.__name__, cls)
    return definition


def find(kind: str, attrs: Mapping[str, str]) -> CustomOperator:
    """The operator that a node of symbol JSON asks for, among the classes that are here.

    Raises:
        MXNetError: there is none of that op_type.
    """
    op_type = attrs.get("op_type")
    if op_type is None:
        raise MXNetError(f"{kind}: op_type is missing: expected the name of an operator")
    if kind == CUSTOM:
        return CustomOperator(Definition(kind, op_type, prop_class(op_type)))
    definition = _native.get((kind, op_type))
    if definition is None:
        raise MXNetError(
            f"{kind}: no operator class {op_type!r} has been called here: load the symbol from a file with its "
            "-ops.json beside it"
        )
    assert definition.cls is not None
    return CustomOperator(definition, native_signature(definition.cls, attrs))


def native_signature(cls: Any, attrs: Mapping[str, str]) -> Signature:
    """Return the names that an instance declares."""
    return instance_signature(rebuilt(cls, attrs))


def instance_signature(instance: Any) -> Signature:
    """Return the names that a NumpyOp or NDArrayOp declares."""
    name = type(instance).__name__
    return Signature(
        _names(name, "list_arguments", instance.list_arguments()),
        (),
        _names(name, "list_outputs", instance.list_outputs()),
    )
