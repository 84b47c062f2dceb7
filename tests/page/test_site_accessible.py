"""The site of the documents in Chromium: the rules of axe-core, contrast among them, and widths."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import DESKTOP, PHONE, prefer, resize
from tests.page.test_accessible import violations

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
PAGES = (
    "",
    "tutorials/team/",  # a tutorial
    "tutorials/pytorch/",  # one with words among its operators: `in`
    "notebooks/",  # a how-to with pictures
    "custom-operators/",  # one with classes
    "lint/",
    "onnx/",
    "fuzz/",
    "wire/",  # reference, with diagrams
    "settings/",  # a page made of the settings
    "python/symbol/",  # and one of docstrings
    "operators/FullyConnected/",
)
"""One page of each kind."""

THEME = {"landmark-unique", "scrollable-region-focusable"}
"""Rules that the theme's own script breaks: it puts the button of each block of code into a `nav` without a name, and
takes blocks that scroll out of the order of tabs on a machine without a mouse, where Chromium itself puts them back."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The site's address."""
    if not SITE.is_dir():
        pytest.skip("the site is not built: make docs builds it")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_no_rule_of_axe_is_broken_on_the_site(driver: Any, site: str, page: str, scheme: str) -> None:
    prefer(driver, scheme)
    # The theme stores a page's colours for the next ones. They are forgotten as a page begins, before its own scripts
    # run: forgotten from outside, a page that is still open, or the renderer's copy, may bring them back.
    forget = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": "localStorage.clear()"})
    try:
        for size in (DESKTOP, PHONE):
            resize(driver, size)
            driver.get(f"{site}/{page}")
            colours = driver.execute_script("return document.body.dataset.mdColorScheme")
            assert colours == {"light": "default", "dark": "slate"}[scheme]
            assert [rule for rule in violations(driver) if rule.partition(":")[0] not in THEME] == []
            width = driver.execute_script("return document.documentElement.scrollWidth")
            assert width <= size[0], f"{width - size[0]} pixels too wide"
        assert "opbox" in driver.title
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", forget)
        resize(driver, DESKTOP)
        prefer(driver, "light")
