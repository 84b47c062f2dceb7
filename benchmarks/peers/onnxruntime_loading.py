"""How long onnxruntime takes to load a model and to run it, and its memory, once and with copies; printed as JSON:

python onnxruntime_loading.py model.onnx "[1, 3, 224, 224]" COPIES
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise

import numpy as np
import onnxruntime
import psutil

RUNS = 6


def megabytes() -> float:
    """Megabytes of this process; shared pages in parts."""
    return float(psutil.Process().memory_full_info().pss) / 1e6


def main(path: str, shape: list[int], copies: int) -> dict[str, float]:
    """Load the model so many times, and run each copy."""
    x = np.random.RandomState(1).rand(*shape).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    empty, sessions, times, memory = megabytes(), [], [], []
    for _ in range(copies):
        marks = [time.perf_counter()]
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        sessions.append(session)  # so that its memory counts on
        name = session.get_inputs()[0].name
        marks.append(time.perf_counter())
        for _ in range(RUNS):
            session.run(None, {name: x})
            marks.append(time.perf_counter())
        times.append([1e3 * (after - before) for before, after in pairwise(marks)])
        memory.append(megabytes() - empty)
    later = sorted(times[-1][2:])
    return {
        "load": times[0][0],
        "first": times[0][1],
        "later": later[len(later) // 2],
        "one": memory[0],
        "ten": memory[-1],
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
