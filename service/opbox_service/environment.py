"""The variables `OPBOX_…` of a server's environment: those that are no settings stop it at its start."""

from __future__ import annotations

from collections.abc import Iterable

from opbox_protocol.errors import BadRequestError
from opbox_protocol.variables import unknown_variables

from .settings import Settings

__all__ = ["check_environment", "setting_names"]


def setting_names() -> list[str]:
    """The names of a server's settings in its environment, after OPBOX_, in order."""
    return sorted(name.upper() for name in Settings.model_fields)


def check_environment(names: Iterable[str]) -> None:
    """Refuse variables that look like settings and are none, as a misspelt limit would be no limit.

    Args:
        names: of the environment's variables.

    Raises:
        BadRequestError: one that begins with OPBOX_ and that nothing reads; the nearest one that there is.

    Example:
        >>> check_environment(["OPBOX_WORKER"])
        Traceback (most recent call last):
        BadRequestError: OPBOX_WORKER: expected a setting of opbox, got an unknown name: did you mean OPBOX_WORKERS?
    """
    for name, near in unknown_variables(names, setting_names()):
        remedy = f"did you mean {near}?" if near else "see opbox serve --help, and unset it"
        raise BadRequestError(f"{name}: expected a setting of opbox, got an unknown name: {remedy}")
