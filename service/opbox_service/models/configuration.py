"""A model's configuration as Triton's clients read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model_config import devices_of

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

    def tensors(rows: list[dict[str, Any]], more: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": row["name"],
                "data_type": f"TYPE_{row['datatype']}",
                **more,
                "dims": row["shape"][1:] if batched > 1 else row["shape"],
            }
            for row in rows
        ]

    return {
        "name": metadata["name"],
        "platform": "opbox",
        "backend": "opbox",
        "version_policy": _version_policy(config.get("versions", "latest")),
        "max_batch_size": batched if batched > 1 else 0,
        "input": tensors(metadata["inputs"], {"format": "FORMAT_NONE"}),
        "output": tensors(metadata["outputs"], {}),
        "instance_group": [
            {"name": f"{metadata['name']}_{number}", "count": 1, **_instance(device)}
            for number, device in enumerate(devices_of(config))
        ],
    }


def _version_policy(versions: str | list[int]) -> dict[str, Any]:
    """Which versions are served, from the field of `model.toml`."""
    if isinstance(versions, list):
        return {"specific": {"versions": versions}}
    return {"all": {}} if versions == "all" else {"latest": {"num_versions": 1}}


def _instance(device: str | None) -> dict[str, Any]:
    """The kind and the numbers of a device's GPUs; None: the server's device, whichever that is."""
    if device is None:
        return {"kind": "KIND_AUTO", "gpus": []}
    kind, _, number = device.partition(":")
    return {"kind": f"KIND_{kind.upper()}", "gpus": [int(number or 0)] if kind == "gpu" else []}
