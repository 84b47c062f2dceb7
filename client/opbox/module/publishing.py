"""A module's files and the lines of `model.toml` that say its inputs, as a server takes them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from opbox_protocol.datatypes import datatype_of

from ..io import DataDesc

__all__ = ["config_of", "contents"]


def contents(write: Callable[[str], None]) -> dict[str, bytes]:
    """The bytes by the file's name of what `write` writes under a path's beginning."""
    with tempfile.TemporaryDirectory(prefix="opbox-publish-") as folder:
        write(str(Path(folder) / "net"))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def config_of(data: Sequence[DataDesc]) -> bytes:
    """The lines that say the inputs' shapes and types; the batch's length may vary.

    Example:
        >>> print(config_of([DataDesc("data", (100, 784))]).decode())
        batch_axis = 0
        [inputs."data"]
        shape = [-1, 784]
        datatype = "FP32"
    """
    axes = [DataDesc.get_batch_axis(desc.layout) for desc in data]
    lines = [f"batch_axis = {axes[0]}"] if axes and axes[0] >= 0 and len(set(axes)) == 1 else []
    for desc, axis in zip(data, axes, strict=True):
        shape = [-1 if at == axis else int(size) for at, size in enumerate(desc.shape)]
        # A TOML string escapes what one of JSON does.
        lines += [f"[inputs.{json.dumps(desc.name)}]", f"shape = {shape}"]
        lines.append(f'datatype = "{datatype_of(np.dtype(desc.dtype))}"')
    return "\n".join(lines).encode()
