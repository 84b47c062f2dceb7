"""Write what the page's form of each operator begins with: a row of the operator table, as far as it does not follow.

python -m tests.cases.presets            # write
python -m tests.cases.presets --check    # fail when what is there is not current

An input whose shape follows from the others, and that takes any values, is left out: the form asks the server for its
shape, so that whoever changes a parameter need not change it too.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.families import FAMILIES, family
from opbox_ops.operator import Op
from opbox_protocol.datatypes import datatype_of
from opbox_protocol.errors import MXNetError
from opbox_service.engine import Engine
from opbox_service.settings import Settings
from tests.cases import Arg, Case, all_cases
from tests.cases.values import DEFAULT, INTEGERS, as_arg

__all__ = ["FILE", "graph_of", "presets"]

FILE = Path(str(files("opbox_service"))) / "page" / "presets.json"
MAX_VALUES = 400
"""Numbers of a row's largest input: more are nothing to look at."""
USUAL_KERNEL = 2
"""The dimensions of a kernel that most people look for first."""
_GRAPHS = "Its parameters hold graphs: the client writes them, with {}."
WITHOUT = {
    "_cond": _GRAPHS.format("mx.sym.contrib.cond"),
    "_foreach": _GRAPHS.format("mx.sym.contrib.foreach"),
    "_while_loop": _GRAPHS.format("mx.sym.contrib.while_loop"),
    "_contrib_boolean_mask": "The shape of its output depends on the values of its inputs, which a graph does not "
    "know: call mx.nd.contrib.boolean_mask on arrays.",
    "_set_value": "It has no input that its output's shape could follow from: it writes to an array, as "
    "x[:] = 2.5 does.",
    "reset_arrays": "It has no output: it sets its inputs to 0, as mx.nd.reset_arrays on arrays does.",
}
"""Operators that no form can run, and why."""


def presets() -> dict[str, Any]:
    """Family, parameters and inputs by the operator's name; or `why` there are none. In the families' order."""
    engine = Engine(Settings())
    rows: dict[str, list[Case]] = {}
    for case in all_cases():
        rows.setdefault(registry.get(case.op).name, []).append(case)
    written: dict[str, Any] = {}
    ours = [op for op in map(registry.get, registry.names()) if registry.module(op.name).startswith("opbox_ops.")]
    for op in sorted(ours, key=lambda op: (list(FAMILIES).index(family(op)), op.name)):
        if op.is_backward:
            continue
        name = op.name
        preset = {"why": WITHOUT[name]} if name in WITHOUT else _preset(engine, op, min(rows[name], key=_distance))
        written[name] = {"family": FAMILIES[family(op)], **preset}
    engine.close()
    return written


def _distance(case: Case) -> tuple[bool, ...]:
    """How far a row is from what people look for first; the first of equal ones is taken."""
    shapes = [arg.shape if isinstance(arg, Arg) else arg for arg in case.inputs.values()]
    kernel = case.attrs.get("kernel")
    return (
        any(not 0 < prod(shape) <= MAX_VALUES for shape in shapes),
        "float32" not in case.dtypes and any(not isinstance(arg, Arg) or not arg.dtype for arg in case.inputs.values()),
        isinstance(kernel, tuple) and (len(kernel) != USUAL_KERNEL or 1 in kernel),
        any(shape == () for shape in shapes),
    )


def _preset(engine: Engine, op: Op, case: Case) -> dict[str, Any]:
    attrs = {key: _text(value) for key, value in case.attrs.items()}
    names = op.input_names(op.parse(attrs))
    usual = "float32" if "float32" in case.dtypes else case.dtypes[0]
    inputs = {name: _input(as_arg(arg), usual) for name, arg in zip(names, case.inputs.values(), strict=True)}
    for name in reversed(list(inputs)[1:]):
        rest = {key: entry for key, entry in inputs.items() if key != name}
        if inputs[name].keys() == {"shape"} and _follows(engine, op, attrs, names, rest):
            inputs = rest
    preset: dict[str, Any] = {"inputs": inputs}
    if attrs:
        preset["attrs"] = attrs
    return preset


def _text(value: Any) -> str:
    """A parameter as the form has it: as Python writes it."""
    return str(tuple(value) if isinstance(value, list) else value)


def _input(arg: Arg, dtype: str) -> dict[str, Any]:
    """The fields of an input that are not the usual ones: random values of FP32."""
    entry: dict[str, Any] = {"shape": list(arg.shape)}
    datatype = datatype_of(np.dtype(arg.dtype or dtype))
    if datatype != "FP32":
        entry["datatype"] = datatype
    if arg.values is not None:
        entry["values"] = [_number(value) for value in np.asarray(arg.values).ravel().tolist()]
    elif arg.kind != "float" or not datatype.startswith(("FP", "BF")):
        low, high = INTEGERS if (arg.low, arg.high) == DEFAULT and arg.kind != "int" else (arg.low, arg.high)
        if datatype.startswith("UINT"):
            low = max(low, 0)
        entry |= {"kind": "distinct" if arg.kind == "distinct" else "int", "low": low, "high": high}
    elif not arg.low < 0 < arg.high:
        entry |= {"low": arg.low, "high": arg.high}
    return entry


def _number(value: Any) -> Any:
    """A number as JSON has it: NaN and the infinities are words there, those of the wire format."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def graph_of(op: Op, attrs: Mapping[str, str], names: list[str]) -> dict[str, Any]:
    """The graph of one call."""
    variables = [{"op": "null", "name": name, "inputs": []} for name in names]
    node = {"op": op.name, "name": "out", "attrs": dict(attrs), "inputs": [[i, 0, 0] for i in range(len(names))]}
    params = op.parse(attrs)
    heads = [[len(names), i, 0] for i in range(op.num_visible_outputs(params))]
    return {"nodes": [*variables, node], "arg_nodes": list(range(len(names))), "heads": heads}


def _follows(engine: Engine, op: Op, attrs: Mapping[str, str], names: list[str], rest: Mapping[str, Any]) -> bool:
    """Whether the shapes of the inputs that are not in `rest` follow from those that are."""
    shapes = {name: other["shape"] for name, other in rest.items()}
    body = {"graph": graph_of(op, attrs, names), "shapes": shapes, "partial": True}
    try:
        header, _ = engine.call("POST", "/v1/infer_shape", body)
    except MXNetError:
        return False
    inferred = dict(
        zip([*header["arg_names"], *header["aux_names"]], [*header["arg_shapes"], *header["aux_shapes"]], strict=True)
    )
    return bool(header["complete"]) and all(inferred[name] == shape for name, shape in shapes.items())


def main() -> int:
    """Write the file, or with `--check` compare it."""
    lines = [f"{json.dumps(name)}: {json.dumps(preset, allow_nan=False)}" for name, preset in presets().items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv[1:]:
        sys.stderr.write(f"{FILE}: not current; run python -m tests.cases.presets\n")
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
