"""Large JSON is parsed in pieces, between which other threads have their turn.

A compiled parser keeps the interpreter's lock until it is done: for the largest body that is longer than anybody should
wait. So the text is cut where a list or an object has a comma, each piece is parsed for itself, and the pieces are put
together. NumPy finds the commas and brackets, without the lock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from opbox_ops.pausing import pause

__all__ = ["PIECE", "nesting", "parse_in_pieces"]

PIECE = 1 << 17
"""Bytes to parse at a time; shorter texts are parsed as a whole."""
SCANNED = 1 << 18
"""Bytes to scan at a time."""
DEEPEST = 500
"""Maximum nesting of JSON; no setting may allow more."""

COMMA, OPENING, CLOSING = 1, 2, 3
_KINDS = np.zeros(256, np.uint8)
for _kind, _characters in ((COMMA, b","), (OPENING, b"[{"), (CLOSING, b"]}")):
    _KINDS[list(_characters)] = _kind
_STEPS = np.array([0, 0, 1, -1], np.int16)
_KEY = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.){0,65536}")[ \t\n\r]*:', re.DOTALL)
_SPACES = b" \t\n\r"
_ESCAPED = 12
"""Bytes of the longest escaped character: two halves of a pair, \\uXXXX each."""
_BLANK = re.compile(rb"[ \t\n\r]*")


def parse_in_pieces(text: bytes, parse: Callable[[bytes], Any], *, piece: int = PIECE, scanned: int = SCANNED) -> Any:
    """Parse a JSON text with `parse`, called for one piece of it at a time.

    Args:
        text: UTF-8.
        parse: reads JSON; ValueError where it is none.
        piece, scanned: bytes to parse, and to scan, at a time.

    Raises:
        ValueError: the text is no JSON; with the number of the byte at which the piece in question begins.
        RecursionError: nested deeper than anything that is accepted.

    Example:
        >>> parse_in_pieces(b'{"a": [1, 2]}', json.loads)
        {'a': [1, 2]}
    """
    if len(text) <= piece or text.lstrip(_SPACES)[:1] not in (b"[", b"{"):
        return parse(text)
    marks = _Marks(text, scanned)
    return _Pieces(text, marks, parse, piece).container(0, len(marks.places) - 1)


def nesting(text: bytes) -> tuple[int, int]:
    """Return how deep lists and objects are nested, and the number of commas and of brackets that open.

    Raises:
        ValueError: the text is no JSON.
        RecursionError: nested deeper than anything that is accepted.

    Example:
        >>> nesting(b'[1, {"a": 2}, "],["]')
        (2, 4)
    """
    marks = _Marks(text, SCANNED)
    return int(marks.depths.max(initial=0)), int((marks.kinds != CLOSING).sum())


class _Marks:
    """The commas and brackets of a text that are not in strings.

    Attributes:
        places: of their bytes.
        kinds: COMMA, OPENING or CLOSING.
        depths: of the list or object that they belong to; 1 for the outermost.
    """

    def __init__(self, text: bytes, scanned: int) -> None:
        characters = np.frombuffer(text, np.uint8)
        places, kinds, depths = [], [], []
        depth, inside, escaped = 0, 0, False
        for start in range(0, len(text), scanned):
            piece = characters[start : start + scanned]
            quotes, escaped = _quotes(piece, escaped)
            lower = piece | 0x20  # which makes {} of []
            at = np.flatnonzero((lower == ord("{")) | (lower == ord("}")) | (piece == ord(",")))
            at = at[(np.searchsorted(quotes, at) + inside) % 2 == 0]
            inside = (inside + len(quotes)) % 2
            kind = _KINDS[piece[at]]
            after = np.cumsum(_STEPS[kind], dtype=np.int32)
            after += depth
            if len(after):
                depth = int(after[-1])
                if int(after.max()) > DEEPEST:
                    raise RecursionError
                if int(after.min()) < 0:
                    raise ValueError("a bracket closes what none has opened")
            places.append(at + start)
            kinds.append(kind)
            depths.append((after + (kind == CLOSING)).astype(np.int16))
        if inside:
            raise ValueError("a string does not end")
        if depth:
            raise ValueError("a bracket is not closed")
        self.places = np.concatenate(places)
        self.kinds = np.concatenate(kinds)
        self.depths = np.concatenate(depths)


def _quotes(piece: np.ndarray[Any, Any], escaped: bool) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the positions of the quotes around strings, and whether the next piece's first character is escaped.

    A quote behind an odd number of backslashes is a character of its string.
    """
    quotes = np.flatnonzero(piece == ord('"'))
    slashes = np.flatnonzero(piece == ord("\\"))
    if not len(slashes):
        return quotes[1:] if escaped and len(quotes) and quotes[0] == 0 else quotes, False
    # The first backslash of the row that each belongs to; a row that the piece before began is one longer.
    begins = np.diff(slashes, prepend=-2) != 1
    first = np.maximum.accumulate(np.where(begins, slashes, 0))
    if escaped:
        first[first == 0] = -1
    row = np.searchsorted(slashes, quotes) - 1
    behind = (row >= 0) & (slashes[row] == quotes - 1)
    count = np.where(behind, quotes - first[row], (quotes == 0) & escaped)
    last = len(piece) - 1
    return quotes[count % 2 == 0], bool(slashes[-1] == last and (last - first[-1]) % 2 == 0)


class _Pieces:
    """Puts a text's lists and objects together.

    Args:
        text, parse, piece: see parse_in_pieces.
        marks: of the text.
    """

    def __init__(self, text: bytes, marks: _Marks, parse: Callable[[bytes], Any], piece: int) -> None:
        self._text = text
        self._piece = piece
        self._parse = parse
        self._places, self._kinds, self._depths = marks.places, marks.kinds, marks.depths
        if text[: int(self._places[0])].strip(_SPACES) or text[int(self._places[-1]) + 1 :].strip(_SPACES):
            raise ValueError("expected nothing before and behind the outermost brackets")

    def container(self, first: int, last: int) -> Any:
        """The list or object from one mark to another, which are its brackets."""
        begin, end = int(self._places[first]), int(self._places[last])
        opening, closing = self._text[begin : begin + 1], self._text[end : end + 1]
        if self._kinds[last] != CLOSING or closing != (b"]" if opening == b"[" else b"}"):
            raise ValueError(f"a bracket of another kind closes what byte {begin} opens")
        if end - begin <= self._piece:
            return self._parsed(begin, self._text[begin : end + 1])
        depth = self._depths[first]
        own = first + 1 + np.flatnonzero(self._depths[first + 1 : last] == depth)
        if not (self._kinds[own] == COMMA).all():
            raise ValueError(f"byte {end}: a bracket closes what it should not")
        value: Any = [] if opening == b"[" else {}
        add = value.extend if opening == b"[" else value.update
        for start, stop, mark, behind in self._groups(first, last, own):
            add(self._group(opening, closing, start, stop, mark, behind))
        return value

    def _groups(self, first: int, last: int, commas: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int, int]]:
        """Runs of members of at most a piece's size, or one larger one: where it begins and ends, its marks between."""
        ends = np.append(self._places[commas], self._places[last])
        marks = np.append(commas, last)
        start, mark, member = int(self._places[first]) + 1, first + 1, 0
        while member < len(ends):
            following = max(int(np.searchsorted(ends, start + self._piece)), member + 1)
            stop = int(ends[following - 1])
            yield start, stop, mark, int(marks[following - 1])
            start, mark, member = stop + 1, int(marks[following - 1]) + 1, following

    def _group(self, opening: bytes, closing: bytes, start: int, stop: int, mark: int, behind: int) -> Any:
        if _BLANK.fullmatch(self._text, start, stop):
            raise ValueError(f"byte {start}: expected a value between two commas or brackets")
        if stop - start <= self._piece:
            return self._parsed(start, b"".join((opening, self._text[start:stop], closing)))
        if opening == b"[":
            return [self._member(start, stop, mark, behind)]
        key = _KEY.match(self._text, start, stop)
        if key is None:
            return self._parsed(start, b"".join((opening, self._text[start:stop], closing)))
        return {self._parsed(start, key[1]): self._member(key.end(), stop, mark, behind)}

    def _member(self, start: int, stop: int, mark: int, behind: int) -> Any:
        """A value that is larger than a piece: a list or an object, or one long string or number."""
        if mark == behind:
            return self._scalar(start, stop)
        begin, end = int(self._places[mark]), int(self._places[behind - 1])
        if not (_BLANK.fullmatch(self._text, start, begin) and _BLANK.fullmatch(self._text, end + 1, stop)):
            raise ValueError(f"byte {start}: expected one value between two commas or brackets")
        return self.container(mark, behind - 1)

    def _scalar(self, start: int, stop: int) -> Any:
        """A long string, number or word."""
        text = self._text
        at = _BLANK.match(text, start, stop).end() + 1  # type: ignore[union-attr]  # it matches nothing, too
        pieces = []
        last = text.rfind(b'"', at, stop) if text[at - 1 : at] == b'"' else 0
        while last - at > self._piece:
            cut = self._cut(at + self._piece)
            if cut <= at:
                break
            pieces.append(self._parsed(start, b'"%b"' % text[at:cut]))
            at = cut
        if not pieces:
            return self._parsed(start, text[start:stop])
        return "".join([*pieces, self._parsed(start, b'"' + text[at:stop])])

    def _cut(self, at: int) -> int:
        """The last place up to `at` where a string may be cut; 0 where none is near."""
        text = self._text
        for place in range(at, at - 4 * _ESCAPED, -1):
            if text[place] & 0xC0 != 0x80 and text.rfind(b"\\", max(0, place - _ESCAPED), place) < 0:
                return place
        return 0

    def _parsed(self, start: int, text: bytes) -> Any:
        pause()
        try:
            return self._parse(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{error.msg} (in the piece from byte {start} on)") from None
