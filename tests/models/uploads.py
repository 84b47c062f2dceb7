"""Files of models that tests publish."""

from __future__ import annotations

import struct

import numpy as np

from tests.models.folders import perceptron

INPUT = "[inputs.data]\nshape = [-1, 4]\n"
QUOTA = 1 << 17
"""Bytes of models that an owner may have in the tests."""


def files(scale: float = 1.0, toml: str = INPUT) -> dict[str, bytes]:
    """A version's files."""
    net, params = perceptron(scale)
    arrays = {f"arg:{name}": array.asnumpy() for name, array in params.items()}
    version = {"net-symbol.json": net.tojson().encode(), "net.params": packed(arrays)}
    return {**version, "model.toml": toml.encode()} if toml else version


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """A file of float32 arrays by name."""
    chunks = [struct.pack("<QQQ", 0x112, 0, len(arrays))]
    for array in arrays.values():
        chunks.append(struct.pack(f"<IiI{array.ndim}qiii", 0xF993FAC9, 0, array.ndim, *array.shape, 1, 0, 0))
        chunks.append(array.astype(np.float32).tobytes())
    chunks.append(struct.pack("<Q", len(arrays)))
    chunks += [struct.pack("<Q", len(name)) + name.encode() for name in arrays]
    return b"".join(chunks)
