"""A model's configuration as Triton's clients read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["configuration"]


def configuration(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model.

    Args:
        metadata: its inputs and outputs, as the Open Inference Protocol has them.
        config: the fields of its `model.toml`.

    Example:
        >>> configuration({"name": "m", "inputs": [], "outputs": []}, {"max_batch": 8})["max_batch_size"]
        8
    """
    batched = config.get("max_batch", 1) if config.get("batch_axis", 0) == 0 else 1

    def tensors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "name": row["name"],
                "data_type": f"TYPE_{row['datatype']}",
                "dims": row["shape"][1:] if batched > 1 else row["shape"],
            }
            for row in rows
        ]

    return {
        "name": metadata["name"],
        "platform": "opbox",
        "backend": "opbox",
        "max_batch_size": batched if batched > 1 else 0,
        "input": tensors(metadata["inputs"]),
        "output": tensors(metadata["outputs"]),
    }
