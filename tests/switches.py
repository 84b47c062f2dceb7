"""Sets OPBOX_DISABLE and OPBOX_C_KERNELS for a test."""

from __future__ import annotations

import os

import pytest

from opbox_ops.switches import VARIABLE

__all__ = ["set_c_kernels", "switch", "switch_off"]


def switch(patch: pytest.MonkeyPatch, name: str, *, on: bool) -> None:
    """Switch one thing on or off, and leave the others as they are."""
    names = set(filter(None, os.environ.get(VARIABLE, "").split(",")))
    patch.setenv(VARIABLE, ",".join(sorted(names - {name} if on else names | {name})))


def switch_off(patch: pytest.MonkeyPatch, name: str) -> None:
    switch(patch, name, on=False)


def set_c_kernels(patch: pytest.MonkeyPatch, mode: str) -> None:
    """Have C kernels compiled at once ("now"), in the background ("1"), or not at all ("0")."""
    switch(patch, "c-kernels", on=mode != "0")
    patch.setenv("OPBOX_C_KERNELS", mode if mode == "now" else "")
