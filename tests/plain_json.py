"""A request's tensors as plain JSON, as people write it to curl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opbox_protocol.datatypes import datatype_of
from opbox_protocol.strict_json import json_values

__all__ = ["plain_tensors"]


def plain_tensors(tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[dict[str, Any]]:
    """The tensors as a frame's header lists them, with their elements as flat `data`."""
    return [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatype_of(array.dtype),
            "data": json_values(array.reshape(-1), "string"),
        }
        for name, array in tensors.items()
    ]
