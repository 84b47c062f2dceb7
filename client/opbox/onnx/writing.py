"""Checking a model and writing its file: whole, or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from opbox_protocol.errors import MXNetError

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["write"]

LARGEST = 2**31 - 1
"""Maximum bytes of a protobuf message."""


def write(model: ModelProto, path: str | Path, with_shapes: bool) -> str:
    """Check the model and write it.

    Args:
        model: the model.
        path: its file.
        with_shapes: note the shapes of all values in it.

    Returns:
        the path.

    Raises:
        MXNetError: the model is larger than 2 GB, or onnx finds a mistake in it.
        OSError: the file cannot be written.
    """
    from onnx import checker, shape_inference

    if model.ByteSize() > LARGEST:
        raise MXNetError(f"export_model: expected a model of at most 2 GB, got {model.ByteSize()} bytes: split it")
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise MXNetError(f"export_model: onnx refuses the model: {' '.join(str(error).split())}") from error
    if with_shapes:
        model = shape_inference.infer_shapes(model)
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"export_model: onnx_file_path: expected a folder that exists, got {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"export_model: onnx_file_path: expected the path of a file, got the folder {target}")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(model.SerializeToString())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    logging.info("ONNX model written: %s", path)
    return str(path)
