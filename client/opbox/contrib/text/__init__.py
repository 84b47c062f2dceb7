"""MXNet's `mx.contrib.text`: vocabularies, and vectors of tokens from files on this machine."""

from . import embedding, utils, vocab

__all__ = ["embedding", "utils", "vocab"]
