"""Parameters of operators as MXNet writes them: strings, checked against the catalogue's JSON Schema.

The engine parses every attribute again, with the operator's own model; what is checked here is what can be said at the
line that makes the symbol: names, choices, kinds and bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opbox_protocol.mxnet import BOOLEANS, INTEGER, attribute_value

__all__ = ["accepts", "default_of", "described", "type_name"]


def _kinds(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "$ref" in schema:
        return _kinds(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return [kind for choice in schema[key] for kind in _kinds(choice, definitions)]
    return [schema]


def accepts(text: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Return whether the string may be a value of the parameter; in doubt, yes: the engine has the last word."""
    return any(_fits(text.strip(), kind) for kind in _kinds(schema, definitions))


def _fits(text: str, kind: Mapping[str, Any]) -> bool:
    if "const" in kind:
        return text == str(kind["const"])
    if "enum" in kind:
        return text in [str(choice) for choice in kind["enum"]]
    expected = kind.get("type")
    if expected == "null":
        return text == "None"
    if expected == "boolean":
        return text in BOOLEANS
    if expected == "integer":
        whole = INTEGER.fullmatch(text) is not None or text in ("True", "False")
        return whole and _within(attribute_value(text), kind)
    if expected == "number":
        value = attribute_value(text)
        return isinstance(value, bool | int | float) and _within(value, kind)
    if expected == "array":
        value = attribute_value(text)
        return isinstance(value, tuple | int | float)
    return True


def _within(value: float, kind: Mapping[str, Any]) -> bool:
    return not (
        value < kind.get("minimum", value)
        or value > kind.get("maximum", value)
        or ("exclusiveMinimum" in kind and value <= kind["exclusiveMinimum"])
        or ("exclusiveMaximum" in kind and value >= kind["exclusiveMaximum"])
    )


def described(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return in words what the parameter accepts."""
    return " or ".join(dict.fromkeys(_words(kind) for kind in _kinds(schema, definitions)))


def _words(kind: Mapping[str, Any]) -> str:
    if "const" in kind:
        return repr(kind["const"])
    if "enum" in kind:
        return "one of " + ", ".join(repr(choice) for choice in kind["enum"])
    expected = kind.get("type")
    if expected == "array":
        item = kind.get("items", {}).get("type")
        return "a tuple of " + ("integers" if item == "integer" else "values")
    words = {"integer": "an integer", "number": "a number", "boolean": "True or False", "null": "None"}
    said = words.get(str(expected), "a string")
    bounds = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "of at most",
        "exclusiveMaximum": "below",
    }
    limits = " and ".join(f"{word} {kind[key]}" for key, word in bounds.items() if key in kind)
    return f"{said} {limits}" if limits else said


def type_name(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The parameter's type as a Python annotation, for signatures and stubs."""
    names = {"integer": "int", "number": "float", "boolean": "bool | int", "null": "None", "string": "str"}
    types: list[str] = []
    for kind in _kinds(schema, definitions):
        if "enum" in kind or "const" in kind:
            choices = kind.get("enum", [kind.get("const")])
            types.append(f"Literal[{', '.join(map(repr, choices))}]")
        elif kind.get("type") == "array":
            items = [item for item in _kinds(kind.get("items", {}), definitions) if item.get("type") != "null"]
            one = " | ".join(dict.fromkeys(names.get(str(item.get("type")), "Any") for item in items))
            holes = " | None" if any(item.get("type") == "null" for item in _kinds(kind.get("items", {}), {})) else ""
            types += [f"Sequence[{one}{holes}]", one]
        else:
            types.append(names.get(str(kind.get("type")), "Any"))
    return " | ".join(dict.fromkeys(types))


def default_of(schema: Mapping[str, Any]) -> str:
    """The default as Python source, "…" when there is none."""
    if "default" not in schema:
        return "..."
    value = schema["default"]
    return repr(tuple(value) if isinstance(value, list) else value)
