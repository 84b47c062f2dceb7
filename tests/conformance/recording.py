"""The files that hold what MXNet computed for the rows of a family: one .npz each, arrays end to end.

A row is recorded in its first type, in every type that is not a float (the float types compute on the same numbers and
share one recording), with a digest of what it was run on, so that a changed row counts as not recorded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cases.case import Case
from ..cases.values import inputs, is_float

__all__ = ["FOLDER", "Entry", "digest", "read", "recorded_dtypes", "source_dtype", "write"]

FOLDER = Path(__file__).resolve().parent / "recorded"
VERSION = 2


@dataclass
class Entry:
    """What MXNet made of one row in one type.

    Attributes:
        digest: of the row and its inputs.
        error: MXNet's refusal; then nothing else is there.
        outputs: the visible outputs.
        grads: by input name.
        aux: auxiliary states after the forward run, by input name.
        after: auxiliary states after the backward run (where there is one): BatchNorm's change there.
    """

    digest: str
    error: str | None = None
    outputs: list[Any] = field(default_factory=list)
    grads: dict[str, Any] = field(default_factory=dict)
    aux: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


def recorded_dtypes(case: Case) -> list[str]:
    """The types that a row is recorded in."""
    return [dtype for i, dtype in enumerate(case.dtypes) if i == 0 or not is_float(dtype)]


def source_dtype(case: Case, dtype: str) -> str | None:
    """Which recorded type the values for `dtype` are to be compared with."""
    dtypes = recorded_dtypes(case)
    if dtype in dtypes:
        return dtype
    return dtypes[0] if is_float(dtypes[0]) else None


def digest(case: Case, dtype: str) -> str:
    """Changes when the operator, its attributes, its inputs or its mode do."""
    sha = hashlib.sha256(repr((VERSION, case.id, dtype, case.grad, case.is_train)).encode())
    for name, array in inputs(case, dtype).items():
        sha.update(repr((name, array.shape, array.dtype.name)).encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def write(path: Path, entries: dict[str, Entry]) -> None:
    """Write the entries by key `id|dtype`; equal entries make equal bytes."""
    index, blob, at = {}, [], 0
    for key in sorted(entries):
        entry = entries[key]
        record: dict[str, Any] = {"digest": entry.digest}
        if entry.error is not None:
            record["error"] = entry.error
        parts = [(f"out:{i}", array) for i, array in enumerate(entry.outputs)]
        parts += [(f"grad:{name}", array) for name, array in entry.grads.items()]
        parts += [(f"aux:{name}", array) for name, array in entry.aux.items()]
        parts += [(f"after:{name}", array) for name, array in entry.after.items()]
        for name, array in parts:
            record.setdefault("arrays", []).append([name, array.dtype.name, list(array.shape), at])
            blob.append(np.ascontiguousarray(array).tobytes())
            at += array.nbytes
        index[key] = record
    text = json.dumps(index, indent=0, sort_keys=True).encode()
    np.savez_compressed(path, index=np.frombuffer(text, np.uint8), data=np.frombuffer(b"".join(blob), np.uint8))


def read(path: Path) -> dict[str, Entry]:
    """The entries in a file; none when there is no file."""
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        index, data = json.loads(file["index"].tobytes()), file["data"].tobytes()
    entries = {}
    for key, record in index.items():
        entry = Entry(record["digest"], record.get("error"))
        for name, dtype, shape, at in record.get("arrays", []):
            count = int(np.prod(shape, dtype=int))
            array = np.frombuffer(data, np.dtype(dtype), count, at).reshape(shape)
            kind, _, rest = name.partition(":")
            if kind == "out":
                entry.outputs.append(array)
            else:
                {"grad": entry.grads, "aux": entry.aux, "after": entry.after}[kind][rest] = array
        entries[key] = entry
    return entries
