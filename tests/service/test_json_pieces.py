"""Large JSON in pieces says the same as JSON that is read at once."""

from __future__ import annotations

import json
import math
import random
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_service import json_text
from opbox_service.json_pieces import parse_in_pieces
from tests.fuzzing import FUZZ

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(max_size=12) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=20,
)
CHANGES = st.lists(st.tuples(st.integers(0, 999), st.sampled_from(b',[]{}":\\1 a'), st.integers(0, 2)), max_size=4)


in_small_pieces = partial(parse_in_pieces, piece=8, scanned=7)


def outcome(read: Any, text: bytes) -> str:
    try:
        return repr(read(text))
    except ValueError:
        return "no JSON"


@settings(max_examples=300 * FUZZ, deadline=None)
@given(VALUES, st.booleans(), CHANGES)
def test_any_text(value: Any, ascii_only: bool, changes: list[tuple[int, int, int]]) -> None:
    text = bytearray(json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace"))
    for place, character, kind in changes:
        at = place % len(text)
        if kind == 0:
            text[at] = character
        elif kind == 1:
            text.insert(at, character)
        elif len(text) > 1:
            del text[at]
    whole = bytes(text)
    assert outcome(lambda text: in_small_pieces(text, orjson.loads), whole) == outcome(orjson.loads, whole)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'["aaaaaaaaaaaa", , 1]', "byte 16"),
        (b'["aaaaaaaaaaaaaaaaa"}', "another kind"),
        (b'["aaaaaaaaaaaaaaaaa"', "not closed"),
        (b'["aaaaaaaaaaaaaaaaa]', "string does not end"),
        (b'["aaaaaaaaaaaaaaaaa"]]', "none has opened"),
        (b'["aaaaaaaaaaaaaaaaa"][]', "should not"),
        (b'["aaaaaaaaaaaa", 1 2, 3]', "from byte 16 on"),
        (b'["aaaaaaaaaaaa", {"b": [1, 2, 3, 4]} 5]', "one value"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(text: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        in_small_pieces(text, orjson.loads)


def test_no_piece_is_much_larger_than_it_should_be() -> None:
    lengths = []

    def parse(text: bytes) -> Any:
        lengths.append(len(text))
        return orjson.loads(text)

    value = {"graph": {"nodes": [{"name": f"n{i}", "inputs": [[i, 0, 0]]} for i in range(2000)]}, "data": [0.5] * 9999}
    assert parse_in_pieces(json.dumps(value).encode(), parse, piece=1000) == value
    assert max(lengths) <= 1002


def test_deep_nesting_is_refused_before_it_is_read() -> None:
    with pytest.raises(RecursionError):
        in_small_pieces(b"[" * 600 + b"1" + b"]" * 600, orjson.loads)


def test_the_server_s_parser_reads_large_texts_so() -> None:
    generator = random.Random(1)
    value = {"x": [generator.random() for _ in range(20_000)], "nan": float("nan")}
    text = json.dumps(value).encode()
    assert len(text) > json_text.PARSED_BYTES
    assert repr(json_text.parse(text)) == repr(value)


@settings(max_examples=200 * FUZZ, deadline=None)
@given(VALUES, st.integers(1, 9))
def test_written_in_pieces_it_is_the_same_text(value: Any, items: int) -> None:
    pieces = [*json_text.write_pieces(value, items=items)]
    assert b"".join(pieces) == json_text.write(value)


def test_numbers_and_odd_keys_are_written_alike_in_pieces() -> None:
    value = {1: [math.nan, math.inf] * 9, None: ("a", {"b": [True] * 9}), "c": {2.5: "\ud800", "d": [[]] * 9}, "e": []}
    assert b"".join(json_text.write_pieces(value, items=2)) == json_text.write(value)
    assert b"".join(json_text.write_pieces(value, "null", items=2)) == json_text.write(value, "null")


def test_no_piece_is_long() -> None:
    trace = [{"node": f"n{i}", "learnt": {"output": "(2,)"}, "known": {}} for i in range(5000)]
    pieces = [*json_text.write_pieces({"names": ["x"] * 9000, "trace": trace, "nested": {"a": {"b": trace}}})]
    assert max(map(len, pieces)) < 40 * json_text.ITEMS
    assert orjson.loads(b"".join(pieces))["nested"]["a"]["b"] == trace


LONG = "".join(random.Random(7).choices('aé€😀\\"\n \x01z/', k=400))


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("shape", ["[%s]", "[%s   ]", ' [ 1, %s\n ,{"a": %s } ]', "[%s x]", '[%s ""]', "[%s\\]"])
def test_long_strings_are_cut_between_characters(shape: str, ascii_only: bool) -> None:
    text = shape.replace("%s", json.dumps(LONG, ensure_ascii=ascii_only)).encode()
    in_pieces = partial(parse_in_pieces, piece=30, scanned=31)
    assert outcome(lambda text: in_pieces(text, orjson.loads), text) == outcome(orjson.loads, text)
    sizes: list[int] = []
    in_pieces(json.dumps(["z" * 5000]).encode(), lambda piece: (sizes.append(len(piece)), orjson.loads(piece))[1])
    assert max(sizes) < 40
