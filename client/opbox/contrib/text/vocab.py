"""Numbers for tokens: the unknown token is 0, then come reserved tokens, then counted ones, the most frequent first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from ...absent import module_getattr
from ...base import value_text

__all__ = ["UNKNOWN_INDEX", "Vocabulary"]

UNKNOWN_INDEX = 0
"""Index of every unknown token."""


class Vocabulary:
    """Tokens and their numbers.

    Args:
        counter: how often each token occurs.
        most_freq_count: the most of the counter's tokens that get a number; by default all. Of equally frequent ones
            those that come first in their order.
        min_freq: the least frequency of a token that gets a number.
        unknown_token: what stands for every other token.
        reserved_tokens: tokens that have a number anyway, such as one for padding.

    Raises:
        AssertionError: as MXNet: a `min_freq` below 1; reserved tokens that repeat or hold the unknown one; a `counter`
            that is no collections.Counter.

    Example:
        >>> vocab = mx.contrib.text.vocab.Vocabulary(Counter("abbccc"), reserved_tokens=["<pad>"])
        >>> vocab.idx_to_token
        ['<unk>', '<pad>', 'c', 'b', 'a']
    """

    def __init__(
        self,
        counter: Counter[Any] | None = None,
        most_freq_count: int | None = None,
        min_freq: int = 1,
        unknown_token: Hashable = "<unk>",
        reserved_tokens: Sequence[Hashable] | None = None,
    ) -> None:
        if min_freq < 1:
            raise AssertionError(f"Vocabulary: min_freq: expected 1 or more, got {min_freq}")
        reserved = list(reserved_tokens or ())
        if unknown_token in reserved:
            raise AssertionError(f"Vocabulary: reserved_tokens: expected tokens other than {unknown_token!r}")
        if len(set(reserved)) < len(reserved):
            repeated = next(token for token in reserved if reserved.count(token) > 1)
            raise AssertionError(f"Vocabulary: reserved_tokens: expected each token once, got {repeated!r} twice")
        if counter is not None and not isinstance(counter, Counter):
            raise AssertionError(f"Vocabulary: counter: expected a collections.Counter, got {value_text(counter)}")
        self._unknown_token = unknown_token
        self._reserved_tokens = None if reserved_tokens is None else reserved
        self._idx_to_token: list[Any] = [unknown_token, *reserved]
        if counter is not None:
            fixed = set(self._idx_to_token)
            ordered = sorted(counter.items(), key=lambda item: item[0])
            ordered.sort(key=lambda item: item[1], reverse=True)
            counted = [token for token, count in ordered if count >= min_freq and token not in fixed]
            self._idx_to_token += counted[:most_freq_count]
        self._token_to_idx = {token: number for number, token in enumerate(self._idx_to_token)}

    def __len__(self) -> int:
        return len(self._idx_to_token)

    @property
    def token_to_idx(self) -> dict[Any, int]:
        """The number of each token."""
        return self._token_to_idx

    @property
    def idx_to_token(self) -> list[Any]:
        """The tokens in the order of their numbers."""
        return self._idx_to_token

    @property
    def unknown_token(self) -> Hashable:
        """The token that stands for every unknown one."""
        return self._unknown_token

    @property
    def reserved_tokens(self) -> list[Hashable] | None:
        """The reserved tokens; None where none were named."""
        return self._reserved_tokens

    def to_indices(self, tokens: Any) -> Any:
        """The number of a token, or a list of numbers for a list of tokens; 0 for unknown ones."""
        if isinstance(tokens, list):
            return [self._token_to_idx.get(token, UNKNOWN_INDEX) for token in tokens]
        return self._token_to_idx.get(tokens, UNKNOWN_INDEX)

    def to_tokens(self, indices: Any) -> Any:
        """The token of a number, or a list of tokens for a list of numbers.

        Raises:
            ValueError: there is no token of that number.
        """
        if isinstance(indices, list):
            return [self._token(number) for number in indices]
        return self._token(indices)

    def _token(self, number: Any) -> Any:
        if not isinstance(number, int) or number >= len(self):
            raise ValueError(f"to_tokens: indices: expected numbers below {len(self)}, got {value_text(number)}")
        return self._idx_to_token[number]


__getattr__ = module_getattr(__name__, __all__)
