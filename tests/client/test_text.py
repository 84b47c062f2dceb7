"""`mx.contrib.text`, compared with what MXNet 1.9.1 gives for the same calls."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import opbox as mx
from opbox.contrib import text

VECTORS = "3 2\na 0.1 0.2 0.3\nb 1 2 3\na 9 9 9\n<unk> 7 7 7\nhello 4 5 6\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "vectors.txt"
    path.write_text(VECTORS)
    return str(path)


def embedding(file: str, **options: object) -> text.embedding.CustomEmbedding:
    with pytest.warns(UserWarning, match="is skipped|: skipped") as warned:
        vectors = text.embedding.CustomEmbedding(file, **options)
    header, twice = (str(warning.message) for warning in warned)
    assert header.endswith("line 1: skipped, as it looks like a header: '3 2'")
    assert twice.endswith("line 4: token 'a' is skipped: it has a vector already")
    return vectors


def test_tokens_are_counted() -> None:
    counted = text.utils.count_tokens_from_str(" Life is great ! \n life is good . \n", to_lower=True)
    assert counted == {"!": 1, ".": 1, "good": 1, "great": 1, "is": 2, "life": 2}
    assert text.utils.count_tokens_from_str("*a*b*\n*b*", r"\*", counter_to_update=counted) is counted
    assert counted["b"] == 2


def test_a_vocabulary() -> None:
    counter = Counter(["a", "b", "b", "c", "c", "c", "some_word$"])
    vocabulary = text.vocab.Vocabulary(counter, reserved_tokens=["<pad>"])
    assert vocabulary.idx_to_token == ["<unk>", "<pad>", "c", "b", "a", "some_word$"]
    assert vocabulary.token_to_idx["b"] == vocabulary.to_indices("b") == 3
    assert vocabulary.to_indices(["c", "zz"]) == [2, 0]
    assert vocabulary.to_tokens([0, 2]) == ["<unk>", "c"]
    assert (len(vocabulary), vocabulary.unknown_token, vocabulary.reserved_tokens) == (6, "<unk>", ["<pad>"])
    few = text.vocab.Vocabulary(counter, most_freq_count=1, min_freq=2, reserved_tokens=["b"])
    assert few.idx_to_token == ["<unk>", "b", "c"]


def test_vectors_of_a_file(embedded: None, file: str) -> None:
    vectors = embedding(file)
    assert (len(vectors), vectors.vec_len, vectors.idx_to_token) == (4, 3, ["<unk>", "a", "b", "hello"])
    assert vectors.idx_to_vec.asnumpy()[[0, 2]].tolist() == [[7, 7, 7], [1, 2, 3]]
    assert vectors.get_vecs_by_tokens(["b", "zz", "Hello"]).asnumpy().tolist() == [[1, 2, 3], [7, 7, 7], [7, 7, 7]]
    assert vectors.get_vecs_by_tokens("Hello", lower_case_backup=True).asnumpy().tolist() == [4, 5, 6]
    vectors.update_token_vectors(["a", "b"], mx.nd.ones((2, 3)) * 5)
    vectors.update_token_vectors("<unk>", mx.nd.ones(3))
    assert vectors.idx_to_vec.asnumpy().tolist() == [[1, 1, 1], [5, 5, 5], [5, 5, 5], [4, 5, 6]]


def test_vectors_of_a_vocabulary(embedded: None, file: str) -> None:
    vocabulary = text.vocab.Vocabulary(Counter(["hello", "q"]), reserved_tokens=["<pad>"])
    vectors = embedding(file, vocabulary=vocabulary)
    assert vectors.idx_to_token == ["<unk>", "<pad>", "hello", "q"]
    assert vectors.idx_to_vec.asnumpy().tolist() == [[7, 7, 7], [7, 7, 7], [4, 5, 6], [7, 7, 7]]
    both = text.embedding.CompositeEmbedding(vocabulary, [embedding(file), embedding(file)])
    assert both.vec_len == 6
    assert both.get_vecs_by_tokens("hello").asnumpy().tolist() == [4, 5, 6, 4, 5, 6]


def test_named_files_are_read_from_their_folder(embedded: None, tmp_path: Path) -> None:
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / "glove.6B.50d.txt").write_text("a 1 2\nb 3 4\n")
    name = {"pretrained_file_name": "glove.6B.50d.txt", "embedding_root": str(tmp_path)}
    vectors = text.embedding.create("GloVe", **name, init_unknown_vec=mx.nd.ones)
    assert vectors.idx_to_vec.asnumpy().tolist() == [[1, 1], [1, 2], [3, 4]]
    assert {key: len(names) for key, names in text.embedding.get_pretrained_file_names().items()} == {
        "glove": 10,
        "fasttext": 327,
    }
    with pytest.raises(ValueError, match=r"wiki.simple.vec', which is not there: opbox downloads nothing"):
        text.embedding.FastText(embedding_root=str(tmp_path))
    with pytest.raises(KeyError, match=r"pretrained_file_name: expected one of glove.42B.300d.txt, .* got 'mine'"):
        text.embedding.GloVe("mine")


def test_wrong_vocabularies() -> None:
    for options, sentence in (
        ({"counter": {"a": 1}}, "counter: expected a collections.Counter, got {'a': 1}"),
        ({"min_freq": 0}, "min_freq: expected 1 or more, got 0"),
        ({"reserved_tokens": ["<unk>"]}, "reserved_tokens: expected tokens other than '<unk>'"),
        ({"reserved_tokens": ["a", "a"]}, "reserved_tokens: expected each token once, got 'a' twice"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            text.vocab.Vocabulary(**options)
    with pytest.raises(ValueError, match="indices: expected numbers below 1, got 3"):
        text.vocab.Vocabulary().to_tokens(3)


@pytest.mark.parametrize(
    ("lines", "error", "sentence"),
    [
        ("a 1 2\nb 1 2 3\n", AssertionError, "line 2: expected 2 numbers as before, got 3"),
        ("a 1 2\nbb\n", AssertionError, "line 2: expected a token and its numbers, got 'bb'"),
        ("a 1 x\n", ValueError, "line 1: expected numbers behind the token, got "),
        ("", AssertionError, "expected at least one token with its vector, got none"),
    ],
)
def test_wrong_files(embedded: None, tmp_path: Path, lines: str, error: type[Exception], sentence: str) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(lines)
    with pytest.raises(error, match=sentence):
        text.embedding.CustomEmbedding(str(path))


def test_wrong_updates(embedded: None, file: str) -> None:
    vectors = embedding(file)
    with pytest.raises(ValueError, match="expected known tokens, got 'zz': set the vector of all unknown tokens"):
        vectors.update_token_vectors("zz", mx.nd.ones(3))
    with pytest.raises(AssertionError, match=r"new_vectors: expected an NDArray of shape \(2, 3\), got \(3,\)"):
        vectors.update_token_vectors(["a", "b"], mx.nd.ones(3))
    with pytest.raises(ValueError, match="expected a file of token vectors, got '/nope'"):
        text.embedding.CustomEmbedding("/nope")
    with pytest.raises(AssertionError, match=r"vocabulary: expected a contrib.text.vocab.Vocabulary, got 3"):
        text.embedding.CompositeEmbedding(3, vectors)
