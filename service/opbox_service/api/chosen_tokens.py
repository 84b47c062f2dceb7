"""Checks tokens that people chose: each takes a quarter of a second, once, in a thread of its own.

Whoever sends wrong tokens costs the server a quarter of one core at most: after a failed check comes a pause.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from opbox_protocol.errors import NotReadyError

from ..token_hashes import ScryptHash

__all__ = ["ChosenTokens"]

T = TypeVar("T")
MAX_WAITING = 16
"""Maximum number of tokens that wait for their check."""
MAX_OF_ADDRESS = 4
"""Maximum number of them from one address."""
PAUSE = 3.0
"""Pause after a failed check, as a multiple of its time."""
REMEMBERED = 1000
"""Number of tokens whose check is remembered, of those that matched and of those that did not."""


class ChosenTokens:
    """The hashes of tokens that people chose, and which tokens matched them. It keeps no token, only keyed digests.

    Args:
        pause: after a failed check, as a multiple of its time.
    """

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        self._hashes: Mapping[str, ScryptHash] = {}
        self._matches: OrderedDict[bytes, str] = OrderedDict()
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: dict[bytes, asyncio.Task[str | None]] = {}
        self._of_address: Counter[str] = Counter()
        self._turn = asyncio.Lock()
        self._paused_until = 0.0
        self._thread: ThreadPoolExecutor | None = None

    def replace(self, texts: Iterable[str]) -> None:
        """Replace all hashes; tokens that matched stay known, as far as their hash does."""
        self._hashes = {text: ScryptHash.parse(text) for text in texts}
        self._refused.clear()

    def match(self, digest: bytes) -> str | None:
        """The hash that a token has matched before, by the token's keyed digest."""
        text = self._matches.get(digest)
        return text if text in self._hashes else None

    async def check(self, digest: bytes, token: bytes, address: str) -> str | None:
        """Compare a token with all hashes; the one that it matches.

        Args:
            digest: keyed, by which the outcome is remembered.
            token: the token.
            address: where it comes from.

        Raises:
            NotReadyError: too many tokens wait to be checked.
        """
        if not self._hashes or digest in self._refused:
            return self.match(digest)
        task = self._waiting.get(digest)
        if task is None:
            if len(self._waiting) >= MAX_WAITING or self._of_address[address] >= MAX_OF_ADDRESS:
                raise NotReadyError(
                    "token: expected one that this server has checked before, got one that has to wait, as many do: "
                    "try again in a moment"
                )
            self._of_address[address] += 1
            task = self._waiting[digest] = asyncio.create_task(self._check(digest, token, address))
        return await asyncio.shield(task)

    async def _check(self, digest: bytes, token: bytes, address: str) -> str | None:
        try:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._paused_until - time.monotonic()))
                self._thread = self._thread or ThreadPoolExecutor(1, "opbox-tokens")
                hashes, begun = self._hashes, time.monotonic()
                text = await asyncio.get_running_loop().run_in_executor(self._thread, _first_match, hashes, token)
                ended = time.monotonic()
                if text is None:
                    self._paused_until = ended + self._pause * (ended - begun)
            if text is not None:
                _remember(self._matches, digest, text)
            elif hashes is self._hashes:
                _remember(self._refused, digest, None)
            return text
        finally:
            del self._waiting[digest]
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]


def _first_match(hashes: Mapping[str, ScryptHash], token: bytes) -> str | None:
    return next((text for text, scrypt_hash in hashes.items() if scrypt_hash.matches(token)), None)


def _remember(table: OrderedDict[bytes, T], digest: bytes, value: T) -> None:
    while len(table) >= REMEMBERED:
        table.popitem(last=False)
    table[digest] = value
