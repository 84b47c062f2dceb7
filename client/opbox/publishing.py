"""Models that a program publishes onto a server: which files travel, and how. Nothing here sends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from opbox_protocol import routes

from .base import value_text
from .file_errors import file_errors, path_of
from .operator.saved import path_beside

__all__ = ["CONFIG_FILE", "EVERYONE", "publish_call", "remove_call"]

CONFIG_FILE = "model.toml"
EVERYONE = "everyone"
"""What `to` says where every owner may call a model."""


def publish_call(
    name: str,
    files: Sequence[str | os.PathLike[str]] | Mapping[str, bytes],
    to: str | Sequence[str] = (),
    version: int | None = None,
    config: str | os.PathLike[str] | None = None,
) -> tuple[str, str, dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The method, path, header and tensors of the call that publishes a model; see `mx.serve.Client.publish`.

    Raises:
        FileError: a file cannot be read.
        TypeError, ValueError: an argument is none of those that it can be.
    """
    if isinstance(files, str | os.PathLike):
        raise TypeError(f"publish: files: expected a list of paths, got one path: [{os.fspath(files)!r}]")
    contents = dict(files) if isinstance(files, Mapping) else _read(files)
    if config is not None:
        contents[CONFIG_FILE] = _content(path_of(config, "publish: config"))
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 1):
        raise ValueError(f"publish: version: expected a number from 1, got {value_text(version)}")
    callers = None if to == EVERYONE else [to] if isinstance(to, str) else list(to)
    header: dict[str, Any] = {"callers": callers}
    if version is not None:
        header["version"] = version
    tensors = {file: np.frombuffer(content, np.uint8) for file, content in contents.items()}
    return "PUT", routes.LISTED_MODEL.format(model=quote(name, safe="")), header, tensors


def remove_call(name: str, version: int | None = None) -> tuple[str, str]:
    """The method and path of the call that removes a published model, or one version of it."""
    path = routes.LISTED_MODEL if version is None else routes.LISTED_VERSION
    return "DELETE", path.format(model=quote(name, safe=""), version=version)


def _read(files: Sequence[str | os.PathLike[str]]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for file in files:
        path = path_of(file, "publish: files")
        if path.name in contents and contents[path.name] != _content(path):
            raise ValueError(f"publish: files: expected files of different names, got two called {path.name!r}")
        contents[path.name] = _content(path)
        operators = path_beside(path)
        if path.name.endswith("-symbol.json") and operators.exists():
            contents.setdefault(operators.name, _content(operators))
    return contents


def _content(path: Path) -> bytes:
    with file_errors(path, "read"):
        return path.read_bytes()
