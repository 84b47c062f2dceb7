"""Diagrams: Mermaid's sequences become drawings, and what is none is refused."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs.site.sequence import svg

DOCS = Path(__file__).resolve().parents[2] / "docs"
SOURCE = """sequenceDiagram
  participant C as Client & co
  participant S as Server
  C->>S: POST /v1/sessions
  Note over S: a worker is picked
  S->>S: runs
  S-->>C: 201
"""


def test_a_sequence_is_drawn() -> None:
    drawing = ElementTree.fromstring(svg(SOURCE))
    texts = ["".join(node.itertext()) for node in drawing.iter() if node.tag.endswith("text")]
    assert texts[:2] == ["Client & co", "Server"]
    assert " ".join(texts[2:]) == "POST /v1/sessions a worker is picked runs 201"
    image = next(node for node in drawing.iter() if node.tag.endswith("svg"))
    assert "Client & co" in image.attrib["aria-label"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [("C ~> S: x", "expected a participant, a message or a note, got 'C ~> S: x'"), ("C->>Z: x", "got Z")],
)
def test_what_cannot_be_drawn_is_an_error(line: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        svg(SOURCE + "  " + line)


def test_the_diagrams_of_the_documents_are_drawn() -> None:
    texts = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    sources = [source for text in texts for source in re.findall(r"^```mermaid\n(.*?)^```", text, re.M | re.S)]
    assert len(sources) >= 2
    for source in sources:
        assert ElementTree.fromstring(svg(source)).tag == "div"
