"""The fastest algorithms of convolutions on disk, beside the compiled kernels: measured once for all processes.

A file holds one problem's result; its name is a hash of the device's name, the versions of cuDNN and of the driver, and
the problem. A process writes to its own folder and reads further ones as well, as it does with kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict
from functools import cache
from typing import Any, TypeAlias

from ..backend.kernel_cache import kernel_folders
from .algorithms import ConvolutionProblem, UsableAlgorithm
from .library import cudnn_version, device_name, driver_version

__all__ = ["FOLDER", "StoredAlgorithm", "read", "write"]

FOLDER = "opbox-cudnn"
"""The folder's name in a folder of compiled kernels."""
_FORMAT = 3
"""A new number makes older files unread."""
_MAX_BYTES = 1 << 16
StoredAlgorithm: TypeAlias = tuple[int, int, bool]
"""An algorithm's number, its arithmetic, and whether it adds the bias."""
_log = logging.getLogger(__name__)


def read(place: int, problem: ConvolutionProblem) -> StoredAlgorithm | None:
    """The algorithm that was the fastest of a problem on such a device; None where no file says so."""
    key = _key(place, problem)
    for folder in kernel_folders():
        path = folder / FOLDER / _file_name(key)
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES)
        except OSError:  # it is not there, or not ours to read
            continue
        stored = _parsed(text, key)
        if stored is not None:
            return stored
        _warn_once(str(path))
    return None


def write(place: int, problem: ConvolutionProblem, fastest: UsableAlgorithm, milliseconds: float) -> None:
    """Write a result, for this process and others; without a folder to write to it is measured again."""
    key = _key(place, problem)
    result = [fastest.number, fastest.math, fastest.adds_bias]
    text = json.dumps({"key": key, "result": result, "milliseconds": milliseconds}, indent=1)
    folder = kernel_folders()[0] / FOLDER
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".new")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, folder / _file_name(key))
        except BaseException:
            os.unlink(temporary)
            raise


def _key(place: int, problem: ConvolutionProblem) -> dict[str, Any]:
    """What a result depends on, as JSON has it."""
    versions = {"format": _FORMAT, "device": device_name(place), "cudnn": cudnn_version(), "driver": driver_version()}
    key: dict[str, Any] = json.loads(json.dumps({**versions, "problem": asdict(problem)}))
    return key


def _file_name(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32] + ".json"


def _parsed(text: bytes, key: dict[str, Any]) -> StoredAlgorithm | None:
    """A file's result; None where the file is damaged, or another problem's."""
    try:
        content = json.loads(text)
        number, math, adds_bias = content["result"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if content.get("key") != key or type(number) is not int or type(math) is not int or type(adds_bias) is not bool:
        return None
    return number, math, adds_bias


@cache
def _warn_once(path: str) -> None:
    _log.warning("%s: expected the result of a measurement of cuDNN's algorithms: the file is ignored", path)
