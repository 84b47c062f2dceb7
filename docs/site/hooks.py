"""MkDocs' hooks: the pages that are made and not written, and links that lead out of the documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docs.make_operators_page import grouped
from docs.site import operator_pages, settings_page
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]

FROM_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Documents of the repository's root, and the site's pages of them."""
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)((?!\.)[^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the operators' pages, the settings, and the documents of the repository's root."""
    pages = {f"operators/{op.name}.md": operator_pages.page(op.name) for ops in grouped().values() for op in ops}
    pages["settings.md"] = settings_page.page()
    for name, page in FROM_ROOT.items():
        pages[page] = _from_root((ROOT / name).read_text(encoding="utf-8"))
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The catalogue becomes the index of the operators' pages; paths of files of the repository become plain text."""
    if page.file.src_uri == "operators.md":
        return operator_pages.index()
    return _OUTSIDE.sub(lambda match: _link(page.file.src_uri, match), markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The search has a name, which the theme leaves out."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def _link(page: str, match: re.Match[str]) -> str:
    """A link out of docs/, to the page that the site has of it."""
    depth = page.count("/")
    if match[1].count("/") <= depth:  # it stays in docs/
        return match[0]
    target = FROM_ROOT.get(match[2])
    if target is None:
        raise ValueError(f"{page}: the site has no {match[2]}: name the file without a link")
    return f"]({'../' * depth}{target}{match[3] or ''})"


def _from_root(text: str) -> str:
    """The text of a document of the repository's root, whose links then stay inside the site."""
    for name, page in FROM_ROOT.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text.replace("](docs/", "](")
