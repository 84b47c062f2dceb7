"""Makes the images and record files of these tests: python -m tests.images.make_files"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

import opbox as mx
from tests.images.cases import FILES


def picture(seed: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    """Smooth colours with a little noise."""
    random = np.random.RandomState(seed)
    coarse = random.randint(0, 256, (height // 6 + 1, width // 6 + 1, channels)).astype(np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, channels)
    return np.clip(smooth.astype(int) + random.randint(-5, 6, smooth.shape), 0, 255).astype(np.uint8)


def record_file(name: str, count: int, labels: int = 1, channels: int = 3, label_of: Any = None) -> None:
    """A record file of JPEGs of two sizes with its index."""
    path = FILES / f"{name}.rec"
    writer = mx.recordio.MXIndexedRecordIO(path.with_suffix(".idx"), path, "w")
    for number in range(count):
        label = float(number) if labels == 1 else [number + part / 10 for part in range(labels)]
        label = label_of(number) if label_of else label
        header = mx.recordio.IRHeader(0, label, number + 100, 0)
        image = picture(number, *((18, 26), (28, 20))[number % 2], channels)
        writer.write_idx(number, mx.recordio.pack_img(header, image, quality=80))
    writer.close()


def boxes(number: int) -> list[float]:
    """A label of one to three objects, behind a head of two numbers."""
    random = np.random.RandomState(number)
    label = [2.0, 5.0]
    for _ in range(1 + number % 3):
        left, top = random.uniform(0, 0.5, 2)
        label += [float(random.randint(4)), left, top, *(random.uniform(0.3, 0.5, 2) + np.array([left, top]))]
    return label


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    record_file("colour", 10)
    record_file("wide", 6, labels=3)
    record_file("grey", 6, channels=1)
    record_file("boxes", 7, label_of=boxes)
    for name, image in (
        ("a.png", picture(20, 17, 23)),
        ("b.jpg", picture(21, 25, 19)),
        ("grey.jpg", picture(22, 20, 20, 1)),
    ):
        cv2.imwrite(str(FILES / name), image)
    Path(FILES / "colour.lst").write_text("".join(f"{n + 100}\t{n * 2}.5\tx/{n}.jpg\n" for n in range(10)))
    Path(FILES / "listed.lst").write_text("7\t1.5\ta.png\n8\t2.5\tb.jpg\n9\t3.5\tgrey.jpg\n")
