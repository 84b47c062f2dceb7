"""Reads ONNX files as networks, in a process of their own: a damaged file ends that, and not the worker."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from opbox_ops.compiler_process import run_compiler
from opbox_ops.cpu.runtime import c_compiler
from opbox_protocol.datatypes import dtype_of
from opbox_protocol.errors import BadRequestError

from ..settings import Settings
from .model_files import ModelFiles, ModelNetwork, read_files
from .onnx_limits import OnnxLimits

__all__ = ["check_files", "onnx_limits", "read_onnx"]

CONVERSION_S = 300.0
"""Seconds that a conversion may take: ResNet-50 takes a few, most of them to start Python."""
PROGRAM = "opbox_service.worker.onnx_process"
NETWORK, PARAMS, TENSORS = "net-symbol.json", "net-0000.params", "tensors.json"
"""What it writes."""


def read_onnx(
    path: Path, settings: Settings, *, memory: int | None = None, seconds: float = CONVERSION_S
) -> ModelNetwork:
    """Read the network of an ONNX file. Its inputs and outputs have the names that the file gives them.

    Args:
        path: of the file.
        settings: have the limits of a graph, and those of code of users, which the conversion has too.
        memory: bytes that the conversion may take; by default as much as code of users.
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
        limits = json.dumps(asdict(onnx_limits(settings, memory)))
        command = [sys.executable, "-P", "-m", PROGRAM, str(path.absolute()), str(folder), limits]
        variables = dict.fromkeys(("HOME", "XDG_CACHE_HOME"), str(folder))
        # The stack of each thread would count as memory, whether it is used or not.
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        try:
            ended = run_compiler(command, folder=folder, seconds=seconds, environment=variables)
        except subprocess.TimeoutExpired:
            raise BadRequestError(
                f"{path.name}: expected a model that is converted within {seconds:g} s, got one that takes longer"
            ) from None
        _take_back(folder)
        if ended.returncode:
            said = ended.stdout.decode("utf-8", "replace").strip().splitlines()
            reason = said[-1] if said else f"its conversion ended with status {ended.returncode}"
            raise BadRequestError(f"{path.name}: {reason.replace(str(path.absolute()), path.name)}")
        check_files(path.name, folder)
        tensors = json.loads((folder / TENSORS).read_bytes())
        network = read_files(
            ModelFiles(folder / NETWORK, folder / PARAMS, None, ""),
            max_nodes=settings.max_nodes,
            max_edges=settings.max_edges,
        )
    shapes = {key: tuple(row["shape"]) for key, row in tensors["inputs"].items()}
    types = {key: dtype_of(row["datatype"]) for key, row in tensors["inputs"].items()}
    return ModelNetwork(network.graph, network.params, shapes, types, tensors["outputs"])


def onnx_limits(settings: Settings, memory: int | None = None) -> OnnxLimits:
    """The limits of a conversion, by a server's settings; see `read_onnx` for `memory`."""
    kernels = c_compiler.share_folder()
    return OnnxLimits(
        first_user=settings.code_user,
        memory=settings.code_memory_bytes if memory is None else memory,
        open_files=settings.code_open_files,
        file_bytes=settings.code_file_bytes,
        tasks=settings.code_tasks + 2 * (os.cpu_count() or 1),
        seccomp=settings.code_seccomp,
        kernels=None if kernels is None else str(kernels),
        maker=os.geteuid(),
    )


def _take_back(folder: Path) -> None:
    """Leave a folder to nobody else that a process of another user had."""
    os.chown(folder, os.geteuid(), os.getegid())
    folder.chmod(0o700)


def check_files(name: str, folder: Path) -> None:
    """Raise BadRequestError where a conversion left a link to what it may not read itself in a file's place."""
    for path in (folder / NETWORK, folder / PARAMS, folder / TENSORS):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise BadRequestError(f"{name}: expected a model that is converted to files, got one that leaves links")
