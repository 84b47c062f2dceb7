"""Random values and the seed (`mx.random`)."""

from __future__ import annotations

from typing import Any

from .context import Context, current_context
from .device_sessions import sessions
from .ndarray.random import (
    exponential,
    gamma,
    generalized_negative_binomial,
    multinomial,
    negative_binomial,
    normal,
    poisson,
    randint,
    randn,
    shuffle,
    uniform,
)

__all__ = [
    "exponential",
    "gamma",
    "generalized_negative_binomial",
    "multinomial",
    "negative_binomial",
    "normal",
    "poisson",
    "randint",
    "randn",
    "seed",
    "shuffle",
    "uniform",
]


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Restart the random streams from a seed.

    Args:
        seed_state: an integer of any sign; its last 64 bits count.
        ctx: a device, or "all": the current one and those in use.

    Raises:
        ValueError: the seed is no integer.
    """
    try:
        number = int(seed_state)
    except (TypeError, ValueError):
        raise ValueError(f"seed: expected a number, got {seed_state!r}") from None
    if isinstance(ctx, Context):
        devices = [ctx.session]
    else:
        opened = current_context().session  # before the list is made, so that it is on it
        devices = [opened, *(session for session in sessions().values() if session != opened)]
    for session in devices:
        session.record({"do": "seed", "seed": number % 2**64})
