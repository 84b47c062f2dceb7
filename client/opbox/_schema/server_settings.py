"""A server's settings in its environment; `python -m opbox_service.schema` writes their names into `settings.json`."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["server_settings"]


def server_settings() -> list[str]:
    """The names, after OPBOX_: variables that a program leaves alone."""
    names: list[str] = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
    return names
