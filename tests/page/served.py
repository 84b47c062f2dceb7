"""The models that the tests of the page look at and try."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

import opbox as mx
from tests.models.conftest import INPUT
from tests.models.folders import perceptron, save

LABELS = ("cat", "dog", "owl")


def save_models(folder: Path) -> None:
    """Write `animals` (named classes, batches), `pixels` and `pixels-last` (which double an image), and `broken`."""
    net, params = perceptron()
    save(folder / "animals", net, params, f'max_batch = 8\nlabels = "names.txt"\n{INPUT}')
    (folder / "animals" / "names.txt").write_text("\n".join(LABELS))
    doubled = mx.sym.broadcast_mul(mx.sym.Variable("image"), mx.sym.Variable("factor"), name="double")
    factor = {"factor": mx.nd.array([2.0]).reshape((1, 1, 1, 1))}
    for name, shape in (("pixels", [1, 3, 2, 2]), ("pixels-last", [1, 2, 4, 3])):
        save(folder / name, doubled, factor, f"[inputs.image]\nshape = {shape}\n")
    (folder / "broken").mkdir()


def png(path: Path, pixels: np.ndarray) -> Path:
    """Write an image of shape (height, width, 3)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path
