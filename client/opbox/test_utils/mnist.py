"""MNIST's digits, from files of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..io import read_idx

__all__ = ["get_mnist"]

_FILES = {
    "train_data": "train-images-idx3-ubyte",
    "train_label": "train-labels-idx1-ubyte",
    "test_data": "t10k-images-idx3-ubyte",
    "test_label": "t10k-labels-idx1-ubyte",
}


def get_mnist(path: str | Path | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """The MNIST digits from idx files in a folder; nothing is downloaded.

    Args:
        path: the folder; the environment variable OPBOX_MNIST, else `data`, when None. Files may be gzipped.

    Returns:
        `train_data`, `test_data`: float32 (n, 1, 28, 28) in [0, 1]; `train_label`, `test_label`: int8 (n,).

    Raises:
        MXNetError: the folder lacks one of the four files.
    """
    folder = Path(path or os.environ.get("OPBOX_MNIST", "data"))
    arrays = {}
    for key, name in _FILES.items():
        try:
            raw = read_idx(folder / name)
        except FileNotFoundError:
            raise MXNetError(
                f"get_mnist: expected {name} (or {name}.gz) in {folder.resolve()}; put MNIST's four idx files into a "
                "folder, and name it as the argument or in OPBOX_MNIST"
            ) from None
        if key.endswith("data"):
            arrays[key] = raw.reshape(len(raw), 1, *raw.shape[1:]).astype(np.float32) / 255
        else:
            arrays[key] = raw.astype(np.int8)
    return arrays
