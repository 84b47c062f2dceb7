"""Images a second of ImageRecordIter, and processor time of an image, beside MXNet's in one run.

    python benchmarks/image_records.py [--images 512] [--rounds 3] [--threads 2]

JPEGs of 256 to 320 pixels are generated and packed into a record file; both read it in turns, whole epochs, and each
batch's values are taken up once (their sum). MXNet is found in .venv-mxnet, or where OPBOX_ORACLE_PYTHON says; without
it its columns stay empty. Rate and processor time are those of the best epoch, so that other programs on the machine
count little; processor time is of all threads of a process, and hardly depends on what else runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "decode, crop": {},
    "rand_crop, rand_mirror, mean": {
        "rand_crop": True, "rand_mirror": True, "mean_r": 123.68, "mean_g": 116.28, "mean_b": 103.53,
    },
    "resize 256, mean, std": {
        "resize": 256, "mean_r": 123.68, "mean_g": 116.28, "mean_b": 103.53, "std_r": 58.4,
        "std_g": 57.1, "std_b": 57.4,
    },
    "random_resized_crop": {
        "random_resized_crop": True, "min_random_area": 0.3, "min_aspect_ratio": 0.75, "max_aspect_ratio": 1.33,
        "rand_mirror": True,
    },
    "uint8": {"dtype": "uint8"},
}  # fmt: skip


def write_records(path, images):
    """A record file of smooth pictures with some noise, as photographs compress."""
    import cv2
    import numpy as np

    import opbox as mx

    writer = mx.recordio.MXIndexedRecordIO(path.with_suffix(".idx"), path, "w")
    for number in range(images):
        random = np.random.RandomState(number)
        height, width = random.randint(256, 321, 2)
        coarse = random.randint(0, 256, (height // 16, width // 16, 3)).astype(np.uint8)
        smooth = cv2.resize(coarse, (int(width), int(height)), interpolation=cv2.INTER_CUBIC).astype(int)
        picture = np.clip(smooth + random.randint(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
        header = mx.recordio.IRHeader(0, float(number % 10), number, 0)
        writer.write_idx(number, mx.recordio.pack_img(header, picture, quality=90))
    writer.close()


def serve(module, path, threads):
    """Answer each line on standard input, the name of a case, with images a second and processor time of an epoch."""
    mx = __import__(module)
    for line in sys.stdin:
        iterator = mx.io.ImageRecordIter(
            path_imgrec=path, path_imgidx=path.replace(".rec", ".idx"), data_shape=(3, 224, 224), batch_size=32,
            preprocess_threads=threads, shuffle=True, verbose=False, **CASES[line.strip()],
        )  # fmt: skip
        for batch in iterator:  # files into the system's cache, memory into the process
            batch.data[0].asnumpy()
        iterator.reset()
        start, busy, images = time.perf_counter(), time.process_time(), 0
        for batch in iterator:
            images += len(batch.data[0]) - batch.pad
            batch.data[0].asnumpy().sum()
        spent = time.process_time() - busy
        print(images / (time.perf_counter() - start), spent / images * 1000, flush=True)
        del iterator, batch


class Side:
    """A process that reads records with one of the two packages."""

    def __init__(self, python, module, path, threads):
        command = [python, __file__, "--serve", module, "--path", str(path), "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def epoch(self, case):
        """Images a second of an epoch, and milliseconds of processor time an image."""
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            try:
                rate, spent = map(float, line.split())
                return rate, spent
            except ValueError:  # what MXNet prints
                continue
        raise SystemExit(f"the process that measures {case!r} has ended")


def columns(values, form, over):
    """Both sides' values, and how many times as good opbox's is: `over` names the side that is divided."""
    if "mxnet" not in values:
        return f"{values['opbox']:10{form}}{'':18}"
    other = "mxnet" if over == "opbox" else "opbox"
    return f"{values['opbox']:10{form}}{values['mxnet']:10{form}}{values[over] / values[other]:8.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.path, options.threads)
        return
    mxnet = os.environ.get("OPBOX_ORACLE_PYTHON", ".venv-mxnet/bin/python")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.rec"
        write_records(path, options.images)
        print(
            f"{options.images} images, {path.stat().st_size / options.images / 1024:.0f} KiB each, "
            f"{options.threads} threads"
        )
        sides = {"opbox": Side(sys.executable, "opbox", path, options.threads)}
        if Path(mxnet).exists():
            sides["mxnet"] = Side(mxnet, "mxnet", path, options.threads)
        print(f"{'':32}{'images a second':>28}{'processor ms an image':>28}")
        print(f"{'':32}" + f"{'opbox':>10}{'mxnet':>10}{'ratio':>8}" * 2)
        for case in CASES:
            epochs = {name: [] for name in sides}
            for _ in range(options.rounds):
                for name, side in sides.items():
                    epochs[name].append(side.epoch(case))
            rates = {name: max(rate for rate, _ in pairs) for name, pairs in epochs.items()}
            spent = {name: min(ms for _, ms in pairs) for name, pairs in epochs.items()}
            print(f"{case:32}" + columns(rates, ".0f", "opbox") + columns(spent, ".2f", "mxnet"), flush=True)
        for side in sides.values():
            side.process.stdin.close()
            side.process.wait()


if __name__ == "__main__":
    main()
