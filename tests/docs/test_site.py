"""The site as `make docs` has built it: nothing of it lies on another host, and a reader without a mouse gets by."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs.make_operators_page import grouped

pytestmark = pytest.mark.docs

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
ASKS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""The attribute by which an element fetches something."""
_LINKS = frozenset({"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload", "manifest"})


class Page(HTMLParser):
    """The parts of a page that the checks look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.headings: list[str] = []
        self.language = ""
        self.viewport = False
        self.without_alt: list[str] = []
        self.without_name: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag in ASKS and ASKS[tag] in values:
            self.fetched.append(values[ASKS[tag]])
        if tag == "link" and _LINKS & set(values.get("rel", "").split()):
            self.fetched.append(values["href"])
        if tag == "html":
            self.language = values.get("lang", "")
        if tag == "meta" and values.get("name") == "viewport":
            self.viewport = "width=device-width" in values["content"]
        if tag == "img" and "alt" not in values:
            self.without_alt.append(values.get("src", ""))
        if tag == "input" and values.get("type") == "text" and not values.get("aria-label"):
            self.without_name.append(str(values))
        if tag in ("h1", "h2", "h3"):
            self.headings.append(tag)


@cache
def pages() -> dict[str, Page]:
    if not SITE.is_dir():
        pytest.fail("the site is not built: run make docs")
    return {
        str(path.relative_to(SITE)): Page(path.read_text(encoding="utf-8"))
        for path in SITE.rglob("*.html")
        if path.name != "404.html"
    }


def test_pages_fetch_nothing_from_another_host() -> None:
    outside = {name: [url for url in page.fetched if re.match(r"(https?:)?//", url)] for name, page in pages().items()}
    assert not {name: urls for name, urls in outside.items() if urls}


def test_styles_fetch_nothing_from_another_host() -> None:
    for style in SITE.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.findall(r"(?:@import\s+|url\()\s*['\"]?(?:https?:)?//[^)\s]+", text), style


def test_no_page_makes_the_theme_load_a_drawing_library() -> None:
    # The theme fetches Mermaid from another host where a page has such an element.
    assert not [path for path in SITE.rglob("*.html") if 'class="mermaid"' in path.read_text(encoding="utf-8")]


def test_pages_are_accessible() -> None:
    for name, page in pages().items():
        assert page.language == "en", name
        assert page.viewport, name
        assert page.headings.count("h1") == 1, name
        assert not page.without_alt, name
        assert not page.without_name, name


def test_every_operator_has_a_page() -> None:
    for ops in grouped().values():
        for op in ops:
            assert f"operators/{op.name}/index.html" in pages()


def test_the_search_finds_operators() -> None:
    index = (SITE / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "operators/FullyConnected/#formula" in index
