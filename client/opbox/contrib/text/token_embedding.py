"""A vocabulary with a vector for each token, read from a text file: a token and its numbers on each line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ... import ndarray as nd
from ...base import user_level, value_text
from ...ndarray import NDArray
from .vocab import UNKNOWN_INDEX, Vocabulary

__all__ = ["_TokenEmbedding", "check_vocabulary"]


class _TokenEmbedding(Vocabulary):
    """Base of embeddings: a vocabulary with a vector for each token. Classes of users derive from it, as in MXNet.

    Where the file has the unknown token, its vector stands for all unknown ones; otherwise `init_unknown_vec` makes it.
    """

    pretrained_file_name_sha1: ClassVar[Mapping[str, str | None]] = {}
    """The names of the known files; their hashes are not checked."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._vec_len = 0
        self._idx_to_vec: NDArray | None = None

    @property
    def vec_len(self) -> int:
        """The length of a vector."""
        return self._vec_len

    @property
    def idx_to_vec(self) -> NDArray | None:
        """The vectors in the order of the tokens' numbers: (tokens, vec_len)."""
        return self._idx_to_vec

    def get_vecs_by_tokens(self, tokens: Any, lower_case_backup: bool = False) -> NDArray:
        """The vectors of tokens.

        Args:
            tokens: a token, or a list of tokens.
            lower_case_backup: look a token that is not there up in small letters.

        Returns:
            (vec_len,) for a token, (tokens, vec_len) for a list.
        """
        listed = tokens if isinstance(tokens, list) else [tokens]
        if lower_case_backup:
            listed = [token if token in self._token_to_idx else token.lower() for token in listed]
        numbers = [self._token_to_idx.get(token, UNKNOWN_INDEX) for token in listed]
        vectors = nd.take(self._vectors(), nd.array(numbers, dtype="int32"), axis=0)
        return vectors if isinstance(tokens, list) else vectors[0]

    def update_token_vectors(self, tokens: Any, new_vectors: NDArray) -> None:
        """Set the vectors of tokens.

        Args:
            tokens: a token, or a list of tokens.
            new_vectors: (tokens, vec_len), or (vec_len,) for one token.

        Raises:
            AssertionError: no vectors are loaded yet, or the new ones have another shape.
            ValueError: an unknown token; the vector of all unknown ones is set under `unknown_token`.
        """
        vectors = self._vectors()
        listed = tokens if isinstance(tokens, list) else [tokens]
        wanted = (len(listed), self._vec_len)
        shape = new_vectors.shape if isinstance(new_vectors, NDArray) else None
        if shape != wanted and not (len(listed) == 1 and shape == wanted[1:]):
            got = value_text(new_vectors) if shape is None else shape
            raise AssertionError(f"update_token_vectors: new_vectors: expected an NDArray of shape {wanted}, got {got}")
        for token in listed:
            if token not in self._token_to_idx:
                raise ValueError(
                    f"update_token_vectors: tokens: expected known tokens, got {token!r}: set the vector of all "
                    f"unknown tokens under {self._unknown_token!r}"
                )
        numbers = nd.array([self._token_to_idx[token] for token in listed], dtype="int32")
        vectors[numbers] = new_vectors.reshape(wanted)

    def _vectors(self) -> NDArray:
        if self._idx_to_vec is None:
            raise AssertionError(f"{type(self).__name__}: expected vectors to be loaded before they are used")
        return self._idx_to_vec

    def _load_embedding(
        self,
        pretrained_file_path: str,
        elem_delim: str,
        init_unknown_vec: Callable[..., NDArray],
        encoding: str = "utf8",
    ) -> None:
        """Read a file; classes of users call it.

        Raises:
            ValueError: there is no such file, or a line has something else than numbers behind the token.
            AssertionError: a line has no numbers, or fewer or more than the lines before.
        """
        path = Path(pretrained_file_path).expanduser()
        if not path.is_file():
            raise ValueError(f"pretrained_file_path: expected a file of token vectors, got {str(path)!r}")
        unknown: list[float] | None = None
        rows: list[list[float]] = []
        seen = set()
        with path.open(encoding=encoding) as lines:
            for number, line in enumerate(lines, 1):
                token, *texts = line.rstrip().split(elem_delim)
                place = f"{path}, line {number}"
                if not texts:
                    raise AssertionError(f"{place}: expected a token and its numbers, got {value_text(token)}")
                row = _numbers(texts, place)
                if token == self._unknown_token and unknown is None:
                    unknown = row
                elif token in seen:
                    _warn(f"{place}: token {token!r} is skipped: it has a vector already")
                elif len(row) == 1:
                    _warn(f"{place}: skipped, as it looks like a header: {line.rstrip()!r}")
                elif rows and len(row) != len(rows[0]):
                    raise AssertionError(f"{place}: expected {len(rows[0])} numbers as before, got {len(row)}")
                else:
                    rows.append(row)
                    self._token_to_idx[token] = len(self._idx_to_token)
                    self._idx_to_token.append(token)
                seen.add(token)
        if not rows:
            raise AssertionError(f"{path}: expected at least one token with its vector, got none")
        self._vec_len = len(rows[0])
        first = init_unknown_vec(shape=self._vec_len) if unknown is None else nd.array(unknown)
        reserved = np.zeros((len(self) - len(rows) - 1, self._vec_len), np.float32)
        self._idx_to_vec = nd.concat(first.reshape((1, -1)), nd.array(np.concatenate([reserved, rows])), dim=0)

    def _build_embedding_for_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Keep only the vectors of a vocabulary's tokens, under its indices; None changes nothing."""
        if vocabulary is not None:
            check_vocabulary(vocabulary)
            self._take([self], vocabulary)

    def _take(self, embeddings: Sequence[_TokenEmbedding], vocabulary: Vocabulary) -> None:
        """Take a vocabulary's tokens, each with its vectors of all embeddings concatenated."""
        tokens = list(vocabulary.idx_to_token)
        parts = [
            nd.concat(one._vectors()[0:1], one.get_vecs_by_tokens(tokens[1:]), dim=0)
            if len(tokens) > 1
            else one._vectors()[0:1]
            for one in embeddings
        ]
        self._idx_to_vec = parts[0] if len(parts) == 1 else nd.concat(*parts, dim=1)
        self._vec_len = self._idx_to_vec.shape[1]
        self._idx_to_token, self._token_to_idx = tokens, dict(vocabulary.token_to_idx)
        self._unknown_token, self._reserved_tokens = vocabulary.unknown_token, vocabulary.reserved_tokens

    @classmethod
    def _check_pretrained_file_names(cls, pretrained_file_name: str) -> None:
        """Raise KeyError for a file that the class does not name."""
        if pretrained_file_name not in cls.pretrained_file_name_sha1:
            names = list(cls.pretrained_file_name_sha1)
            listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            message = f"{cls.__name__}: pretrained_file_name: expected one of {listed}, got {pretrained_file_name!r}"
            raise KeyError(message)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=user_level())


def _numbers(texts: Sequence[str], place: str) -> list[float]:
    try:
        return [float(text) for text in texts]
    except ValueError:
        raise ValueError(f"{place}: expected numbers behind the token, got {value_text(list(texts[:8]))}") from None


def check_vocabulary(vocabulary: Any) -> None:
    """Raise AssertionError, as MXNet, for what is no vocabulary."""
    if not isinstance(vocabulary, Vocabulary):
        raise AssertionError(f"vocabulary: expected a contrib.text.vocab.Vocabulary, got {value_text(vocabulary)}")
