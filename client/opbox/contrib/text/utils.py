"""Counting tokens, for a `Vocabulary`."""

from __future__ import annotations

import re
from collections import Counter

from ...absent import module_getattr

__all__ = ["count_tokens_from_str"]


def count_tokens_from_str(
    source_str: str,
    token_delim: str = " ",
    seq_delim: str = "\n",
    to_lower: bool = False,
    counter_to_update: Counter[str] | None = None,
) -> Counter[str]:
    """Count the tokens of a text.

    Args:
        source_str: the text.
        token_delim: what stands between tokens, as a regular expression.
        seq_delim: what stands between sequences, as a regular expression.
        to_lower: count tokens in small letters.
        counter_to_update: add to this counter; by default to a new one.

    Returns:
        The counter.

    Example:
        >>> mx.contrib.text.utils.count_tokens_from_str("a b\\nb", to_lower=True)
        Counter({'b': 2, 'a': 1})
    """
    tokens = [token for token in re.split(f"{token_delim}|{seq_delim}", source_str) if token]
    counter: Counter[str] = Counter() if counter_to_update is None else counter_to_update
    counter.update(token.lower() for token in tokens) if to_lower else counter.update(tokens)
    return counter


__getattr__ = module_getattr(__name__, __all__)
