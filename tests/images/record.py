"""Records MXNet's values of the cases: .venv-mxnet/bin/python -m tests.images.record"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.images.cases import CASES

HERE = Path(__file__).parent
VALUES, ARRAYS = HERE / "mxnet_values.json", HERE / "mxnet_values.npz"


def separated(name: str, values: list[Any]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Values as JSON has them, and the arrays among them by name; "array" stands in their places."""
    arrays = {f"{name}/{place}": value for place, value in enumerate(values) if isinstance(value, np.ndarray)}
    plain = ["array" if isinstance(value, np.ndarray) else value for value in values]
    return json.loads(json.dumps(plain)), arrays


if __name__ == "__main__":
    import mxnet as mx

    every: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, case in CASES.items():
        every[name], of_case = separated(name, case(mx))
        arrays |= {
            key: value.astype(np.uint8) if value.size and (value == value.astype(np.uint8)).all() else value
            for key, value in of_case.items()
        }
    VALUES.write_text(json.dumps(every, indent=0) + "\n")
    np.savez_compressed(ARRAYS, **arrays)
