"""Write docs/operators.md, the operator catalogue, from the registry.

python docs/make_operators_page.py            # write
python docs/make_operators_page.py --check    # fail when it is not current
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from opbox_ops import registry
from opbox_ops.families import FAMILIES, family
from opbox_ops.params import accepted_values

PAGE = Path(__file__).with_name("operators.md")
AGREEMENT = Path(__file__).with_name("conformance.json")
"""What the last `make conformance` found, by operator."""
ASPECTS = {
    "forward": "values",
    "gradient": "gradients",
    "req": "added gradients",
    "shape": "shapes",
    "type": "types",
    "raises": "taken or refused alike",
}
HEADER = """# Operators

Made from the registry by `make schema`; do not edit. The names, arguments and defaults are MXNet 1.9.1's. In Python an
operator is `mx.sym.<name>` and `mx.nd.<name>`, those that begin with an underscore `mx.sym._internal.<name>`; over
HTTP, `GET /v1/ops/<name>` tells the same as JSON. *In brackets:* inputs and outputs that only some parameters bring.
An input marked *state* is written by the operator. **∇** marks operators with a gradient.

"""


def slots(declared: Any, params: type) -> str:
    """Inputs or outputs in one line."""
    if isinstance(declared, registry.Variadic) and declared.parts:
        groups = ", ".join(f"{part}_0{' *state*' if part in declared.aux else ''}" for part in declared.parts)
        return ", ".join((f"{groups} … (`{declared.count}`)", *declared.last))
    if isinstance(declared, registry.Variadic | registry.Counted):
        return f"{declared.prefix}0 … (`{declared.count}`)"
    if callable(declared):
        return "by the parameters"
    names = []
    for slot in declared:
        text = f"{slot.name} *state*" if slot.aux else slot.name
        names.append(f"[{text}]" if slot.present is not None or slot.visible is not True else text)
    return ", ".join(names) or "none"


def parameter(name: str, field: Any) -> str:
    """One parameter: its name, what it accepts, its default, what it is for."""
    accepts = accepted_values(field.annotation)
    default = "required" if field.is_required() else f"default {field.default!r}"
    about = f": {field.description}" if field.description else ""
    return f"- `{name}`: {accepts}; {default}{about}"


def entry(op: registry.Op, agreement: dict[str, Any]) -> str:
    """One operator; `agreement` is what docs/conformance.json says of drawn calls, by operator."""
    differentiable = " ∇" if op.get_attr("FGradient") is not None else ""
    lines = [f"### `{op.name}`{differentiable}", ""]
    if op.aliases:
        lines += ["Also " + ", ".join(f"`{alias}`" for alias in op.aliases) + ".", ""]
    lines += [op.doc, "", f"Inputs: {slots(op.inputs, op.params)}. Outputs: {slots(op.outputs, op.params)}.", ""]
    fields = [parameter(name, field) for name, field in op.params.model_fields.items() if not field.exclude]
    if fields:
        lines += [*fields, ""]
    if op.name in agreement:
        lines += [compared(agreement[op.name]), ""]
    return "\n".join(lines)


def compared(row: dict[str, Any]) -> str:
    """What drawn calls showed of an operator, in one line."""
    aspects = [key for key in ("forward", "gradient", "req", "shape", "type", "raises") if key in row]
    agree = ", ".join(f"{ASPECTS[key]} {row[key][0]} of {row[key][1]}" for key in aspects)
    dtypes = f" ({', '.join(row['dtypes'])})" if row["dtypes"] else ""
    return f"*Drawn calls that agree with MXNet 1.9.1{dtypes}:* {agree}."


def grouped() -> dict[str, list[registry.Op]]:
    """The operators that have a page, by family, in the order of the catalogue."""
    families: dict[str, list[registry.Op]] = {name: [] for name in FAMILIES}
    for name in registry.names():
        op = registry.get(name)
        if not op.is_backward and not name.startswith("_backward"):
            families.setdefault(family(op), []).append(op)
    return {name: ops for name, ops in families.items() if ops}


@cache
def agreement() -> dict[str, Any]:
    """What docs/conformance.json says of drawn calls, by operator."""
    return dict(json.loads(AGREEMENT.read_text(encoding="utf-8"))) if AGREEMENT.exists() else {}


def page() -> str:
    """The whole catalogue."""
    groups = grouped()
    lines = [HEADER, f"{sum(map(len, groups.values()))} operators in {len(groups)} families.\n"]
    lines += [
        f"\n## {FAMILIES.get(name, name)}\n\n" + "\n".join(entry(op, agreement()) for op in ops)
        for name, ops in groups.items()
    ]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if not current:
        sys.stderr.write("docs/operators.md is not current: run make schema\n")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
