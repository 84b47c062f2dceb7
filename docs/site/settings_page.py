"""The page of the server's settings, from their model."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from opbox_service.owner_terms import OwnerTerms, Token
from opbox_service.settings import Settings

__all__ = ["page"]

HEAD = """# Settings

Each setting is an environment variable of `opbox serve`. Lists and objects are JSON. Unknown `OPBOX_` variables, and
values that do not fit, stop the server at its start with an error. [Run a server](tutorials/serving.md) explains the
settings.

"""

TERMS = """## Terms of owners

`OPBOX_TOKENS_FILE` may be a list of such entries, or an object: the list under `tokens`, terms under `owners` by
the names of the tokens. Terms that an owner lacks are as the settings above
([Serve a team](tutorials/team.md#accounts) has an example).

"""


def page() -> str:
    """The page, in Markdown."""
    tokens = f"## Tokens\n\nAn entry of `OPBOX_TOKENS`, or of its file:\n\n{_table(Token, '')}"
    return f"{HEAD}{_table(Settings, 'OPBOX_')}\n{tokens}\n{TERMS}{_table(OwnerTerms, '')}"


def _table(model: type[BaseModel], prefix: str) -> str:
    lines = ["| name | value, by default | |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        shown = f"{prefix}{name.upper()}" if prefix else name
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        lines.append(f"| `{shown}` | {_kind(field.annotation)}, {default} | {field.description or ''} |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, frozenset | tuple):
        return ", ".join(f"`{item}`" for item in sorted(value))
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if isinstance(value, int) and value >= size and value % size == 0:
            return f"`{value}` ({value // size} {unit})"
    return f"`{value}`"


def _kind(annotation: Any) -> str:
    names = {"int": "integer", "float": "number", "bool": "true or false", "SecretStr": "text", "str": "text"}
    names |= {"Path": "path", "datetime": "time", "AwareDatetime": "time", "Token": "objects, see below"}
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (types.UnionType, Union):  # the latter where a part is a Literal
        return " or ".join(_kind(part) for part in get_args(annotation) if part is not type(None))
    if origin in (tuple, frozenset):
        return f"list of {_kind(get_args(annotation)[0])}"
    name = getattr(annotation, "__name__", str(annotation))
    return names.get(name, name)
