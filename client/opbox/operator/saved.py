"""`-ops.json`: the source of a saved symbol's own operators, beside it.

    {"format": "opbox operators 1",
     "sources": {"<sha256>": {"pieces": [...], "exports": [...]}},
     "nodes": {"softmax": {"op": "Custom", "op_type": "softmax", "source": "<sha256>",
                           "arguments": ["data", "label"], "auxiliary_states": [], "outputs": ["output"]}}}

Reading it runs nothing: names come from the file, and the source goes to the engine when the symbol is bound.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opbox_protocol.errors import MXNetError

from .bundle import Bundle, SourceError
from .definition import KINDS, CustomOperator, Definition, Signature, find

__all__ = ["operator_of", "path_beside", "read", "write"]

FORMAT = "opbox operators 1"


def path_beside(symbol_file: str | Path) -> Path:
    """`lenet-ops.json` for `lenet-symbol.json` (and for `lenet.json`)."""
    path = Path(symbol_file)
    stem = path.name.removesuffix(".json").removesuffix("-symbol")
    return path.with_name(f"{stem}-ops.json")


def write(symbol_file: str | Path, nodes: Iterable[Any]) -> None:
    """Write the sources of the operators among `nodes`; nothing when there are none.

    Source that cannot be had is left out, with a warning: the symbol is saved all the same.
    """
    sources: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    for node in nodes:
        if not isinstance(node.op, CustomOperator):
            continue
        definition = node.op.definition
        try:
            bundle = definition.source()
        except SourceError as error:
            warnings.warn(f"{node.name}: saved without its operator's source: {error}", stacklevel=4)
            continue
        sources[bundle.sha256] = bundle.json()
        names = node.op.signature(node.attrs).json()
        entries[node.name] = {"op": definition.kind, "op_type": definition.name, "source": bundle.sha256, **names}
    if entries:
        text = json.dumps({"format": FORMAT, "sources": sources, "nodes": entries}, indent=2)
        path_beside(symbol_file).write_text(text + "\n", encoding="utf-8")


def read(symbol_file: str | Path) -> dict[str, CustomOperator]:
    """The operators beside a symbol's file, by the names of their nodes; none when there is no such file.

    Raises:
        MXNetError: the file is none of `write`'s.
    """
    path = path_beside(symbol_file)
    if not path.exists():
        return {}
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved.get("format") != FORMAT:
            raise ValueError(f"format {saved.get('format')!r}")
        bundles = {sha: Bundle.from_json(entry) for sha, entry in saved["sources"].items()}
        operators = {}
        for name, entry in saved["nodes"].items():
            definition = Definition(str(entry["op"]), str(entry["op_type"]), None, bundles[entry["source"]])
            operators[name] = CustomOperator(definition, Signature.from_json(entry))
        return operators
    except OSError as error:
        raise MXNetError(f"{path.name}: expected operators as Symbol.save writes them, got {error.strerror}") from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise MXNetError(f"{path.name}: expected operators as Symbol.save writes them, got {error}") from None


def operator_of(
    kind: str, attrs: Mapping[str, str], node: str, operators: Mapping[str, CustomOperator] | None
) -> CustomOperator | None:
    """The user's operator that a node of symbol JSON calls; None when it is one of the catalogue.

    A class that is registered here goes before source from a file.

    Raises:
        MXNetError: neither is there.
    """
    if kind not in KINDS:
        return None
    brought = (operators or {}).get(node)
    try:
        return find(kind, attrs)
    except MXNetError:
        if brought is None or brought.definition.name != attrs.get("op_type") or brought.definition.kind != kind:
            raise
        return brought
