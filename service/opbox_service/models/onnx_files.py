"""Reads ONNX files as networks, in a process of their own: a damaged file ends that, and not the worker."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from opbox_ops.compiler_process import run_compiler
from opbox_protocol.datatypes import dtype_of
from opbox_protocol.errors import BadRequestError

from .model_files import ModelFiles, ModelNetwork, read_files

__all__ = ["read_onnx"]

CONVERSION_S = 300.0
"""Seconds that a conversion may take: ResNet-50 takes a few, most of them to start Python."""
PROGRAM = "opbox_service.models.onnx_process"


def read_onnx(path: Path, *, max_nodes: int, max_edges: int, seconds: float = CONVERSION_S) -> ModelNetwork:
    """Read the network of an ONNX file. Its inputs and outputs have the names that the file gives them.

    Args:
        path: of the file.
        max_nodes, max_edges: limits of a graph.
        seconds: that the conversion may take.

    Raises:
        BadRequestError: it is no ONNX model, has what opbox cannot represent, or takes too long; or the package onnx
            is not installed.
        OSError: it cannot be read.
    """
    with path.open("rb"):
        pass  # the error of a file that is away is the system's
    with tempfile.TemporaryDirectory(prefix="opbox-onnx-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", PROGRAM, str(path.absolute()), str(folder)]
        try:
            ended = run_compiler(command, folder=folder, seconds=seconds)
        except subprocess.TimeoutExpired:
            raise BadRequestError(
                f"{path.name}: expected a model that is converted within {seconds:g} s, got one that takes longer"
            ) from None
        if ended.returncode:
            said = ended.stdout.decode("utf-8", "replace").strip().splitlines()
            reason = said[-1] if said else f"its conversion ended with status {ended.returncode}"
            raise BadRequestError(f"{path.name}: {reason.replace(str(path.absolute()), path.name)}")
        tensors = json.loads((folder / "tensors.json").read_bytes())
        network = read_files(
            ModelFiles(folder / "net-symbol.json", folder / "net-0000.params", None, ""),
            max_nodes=max_nodes,
            max_edges=max_edges,
        )
    shapes = {key: tuple(row["shape"]) for key, row in tensors["inputs"].items()}
    types = {key: dtype_of(row["datatype"]) for key, row in tensors["inputs"].items()}
    return ModelNetwork(network.graph, network.params, shapes, types, tensors["outputs"])
