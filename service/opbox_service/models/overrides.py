"""What a request to load a model says in place of the model's own files: fields of its `model.toml`, or all files."""

from __future__ import annotations

import base64
import binascii
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from opbox_protocol.errors import BadRequestError, StorageError

from ..validation import explain
from .model_config import ModelConfig

__all__ = ["ModelOverride", "override_of", "write_override"]

MAX_FILES = 64
CONFIG, FILE = "config", "file:"
IGNORED = ("unload_dependents",)
"""Parameters that clients send and that change nothing here."""
_PATH = re.compile(r"(?:[1-9][0-9]{0,8}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ModelOverride:
    """What takes the place of a model's own files until it is loaded again.

    Attributes:
        config: fields of its `model.toml`, which go before the file's.
        files: all files of the model by their path in its folder; empty: those that it has.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def merged(self, config: ModelConfig) -> ModelConfig:
        """A model's configuration with these fields in it."""
        return ModelConfig.model_validate({**config.model_dump(exclude_unset=True), **self.config})


def override_of(parameters: Any) -> ModelOverride | None:
    """What the `parameters` of a request to load a model ask for; None where that is nothing.

    Example:
        >>> override_of({"config": '{"max_batch": 4}'}).config
        {'max_batch': 4}

    Raises:
        BadRequestError: a parameter is unknown, the configuration has a mistake, or a file is no base64 or has a path
            that no model has.
    """
    if not isinstance(parameters, dict | None):
        raise BadRequestError(f"parameters: expected an object, got {type(parameters).__name__}")
    config: Mapping[str, Any] = {}
    files: dict[str, bytes] = {}
    for key, value in (parameters or {}).items():
        if key in IGNORED:
            continue
        if not isinstance(value, str):
            raise BadRequestError(f"parameters: {key[:80]!r}: expected a string, got {type(value).__name__}")
        if key == CONFIG:
            config = _config(value)
        elif key.startswith(FILE):
            files[_path(key.removeprefix(FILE))] = _content(key, value)
        else:
            raise BadRequestError(f"parameters: expected config or file:PATH, got {key[:80]!r}")
    if len(files) > MAX_FILES:
        raise BadRequestError(f"parameters: expected at most {MAX_FILES} files, got {len(files)}")
    return ModelOverride(config, files) if config or files else None


def _config(text: str) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"parameters: config: expected a JSON object, got malformed JSON: {error}") from None
    if not isinstance(values, dict):
        raise BadRequestError(f"parameters: config: expected a JSON object, got {type(values).__name__}")
    try:
        return ModelConfig.model_validate(values).model_dump(exclude_unset=True)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        raise BadRequestError(f"parameters: config: {explain(item, ModelConfig, item['loc'])}") from None


def _path(path: str) -> str:
    if _PATH.fullmatch(path) is None:
        raise BadRequestError(
            f"parameters: expected a file's name, or a version, a slash and a file's name, got {path[:80]!r}"
        )
    return path


def _content(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestError(f"parameters: {key[:80]!r}: expected a file in base64, got other text") from None


def write_override(override: ModelOverride) -> tempfile.TemporaryDirectory[str]:
    """Write the files of an override to a new folder that only the server's user may read.

    Raises:
        StorageError: the disk has no room for them.
    """
    folder = tempfile.TemporaryDirectory(prefix="opbox-model-")
    try:
        for path, content in override.files.items():
            target = Path(folder.name, path)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        folder.cleanup()
        raise StorageError(f"the model's files: cannot be written ({error.strerror}): free some space") from None
    return folder
