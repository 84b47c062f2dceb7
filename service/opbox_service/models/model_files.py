"""ModelFiles: a version's files as they lie in its folder, and the network that is read from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from opbox.ndarray.files import read_arrays
from opbox_protocol.errors import BadRequestError, MXNetError

from ..graph.ir import Graph
from ..graph.json import load
from .own_code import OwnCode

__all__ = [
    "ONNX",
    "OPERATORS",
    "PARAMS",
    "SYMBOL",
    "ModelFiles",
    "ModelNetwork",
    "find_files",
    "read_files",
    "read_labels",
]

Array: TypeAlias = "np.ndarray[Any, Any]"
SYMBOL, PARAMS, ONNX, OPERATORS = "*-symbol.json", "*.params", "*.onnx", "*-ops.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one version.

    Attributes:
        symbol, params: the network and its parameters; None for an ONNX file.
        onnx: the file that has both; None where the two others do.
        stamp: another text whenever a file has changed.
        operators: the sources of operators of the network's own; None where it has none.
    """

    symbol: Path | None
    params: Path | None
    onnx: Path | None
    stamp: str
    operators: Path | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(path.stat().st_size for path in (self.symbol, self.params, self.onnx) if path is not None)


@dataclass(frozen=True, slots=True)
class ModelNetwork:
    """A graph and its parameters.

    Attributes:
        graph: the network.
        params: arrays by argument and auxiliary state.
        shapes: of inputs, as an ONNX file has them; -1 for a length that varies.
        types: of inputs.
        outputs: names that take the place of the graph's own; empty where those stand.
    """

    graph: Graph
    params: Mapping[str, Array]
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    outputs: Sequence[str] = ()


def find_files(folder: Path) -> ModelFiles:
    """The files of a version in its folder.

    Raises:
        BadRequestError: there are none, or too many to know which.
    """
    symbols, params, onnx, operators = (sorted(folder.glob(pattern)) for pattern in (SYMBOL, PARAMS, ONNX, OPERATORS))
    stamp = _stamp([*symbols, *params, *onnx, *operators])
    if len(onnx) == 1 and not symbols and not params:
        return ModelFiles(None, None, onnx[0], stamp)
    if len(symbols) == 1 and params and not onnx:
        # Training writes a file for each epoch: the last one counts.
        return ModelFiles(symbols[0], params[-1], None, stamp, operators[0] if operators else None)
    names = ", ".join(path.name for path in (*symbols, *params, *onnx)[:5]) or "none of them"
    raise BadRequestError(
        f"{folder.name}: expected one NAME-symbol.json with its .params, or one .onnx file, got {names}"
    )


def read_labels(folder: Path, name: str) -> list[str]:
    """The lines of a model's file of labels.

    Raises:
        BadRequestError: it is not in the model's folder, or no text.
    """
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise BadRequestError(f"labels: expected the name of a text file beside {folder.name}'s files, got {name!r}")
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadRequestError(f"labels: {name}: expected UTF-8, got other bytes") from None


def _stamp(paths: list[Path]) -> str:
    described = []
    for path in paths:
        status = path.stat()
        described.append(f"{path.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]


def read_files(files: ModelFiles, *, max_nodes: int, max_edges: int, code: OwnCode | None = None) -> ModelNetwork:
    """Read a network from its two files; `code` has the operators that came with it.

    Raises:
        BadRequestError, GraphError, …: a file is damaged, or not what its name says.
        OSError: it cannot be read.
    """
    assert files.symbol is not None
    assert files.params is not None
    text = files.symbol.read_bytes()
    graph = load(text if code is None else code.document(text), max_nodes=max_nodes, max_edges=max_edges)
    try:
        arrays, names = read_arrays(files.params.read_bytes(), files.params.name)
    except MXNetError as error:
        raise BadRequestError(str(error)) from None
    if arrays and not names:
        raise BadRequestError(f"{files.params.name}: expected arrays by name, got a list: save a dict, as Module does")
    params = {}
    for name, array in zip(names, arrays, strict=True):
        kind, colon, rest = name.partition(":")
        params[rest if colon and kind in ("arg", "aux") else name] = array
    return ModelNetwork(graph, params, {}, {})
