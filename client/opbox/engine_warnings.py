"""EngineWarnings: the engine's warnings, which the user gets in the thread that waits for a value."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence

from .base import user_level

__all__ = ["EngineWarnings"]

KEPT_WARNINGS = 100
"""Number of the last warnings to keep."""


class EngineWarnings:
    """Warnings that came with answers of the engine.

    Attributes:
        waiting: those that the user has not been given yet.
        heard: the last ones that came.
    """

    __slots__ = ("_known", "heard", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[str] = deque()
        self.heard: deque[str] = deque(maxlen=KEPT_WARNINGS)
        self._known: set[str] = set()

    def hear(self, sentences: Sequence[str]) -> None:
        """Keep warnings for the user's thread, each sentence once."""
        self.heard.extend(sentences)
        for sentence in sentences:
            if sentence not in self._known:
                self._known.add(sentence)
                self.waiting.append(sentence)

    def give(self) -> None:
        """Give the user the warnings that have come."""
        while self.waiting:
            warnings.warn(self.waiting.popleft(), stacklevel=user_level())
