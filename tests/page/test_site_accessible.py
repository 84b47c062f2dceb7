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

COLOURS = {"light": "default", "dark": "slate"}
"""The theme's names of its two sets of colours, by the scheme that the browser asks for."""

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
    from selenium.webdriver.support.wait import WebDriverWait

    prefer(driver, scheme)
    # The theme stores a page's colours for the next ones. A page that is still open writes them again as the scheme
    # changes, so removing them is not enough: no page can read them.
    source = "Storage.prototype.getItem = () => null"
    forget = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    try:
        for size in (DESKTOP, PHONE):
            resize(driver, size)
            driver.get(f"{site}/{page}")
            WebDriverWait(driver, 10).until(
                lambda driver: driver.execute_script("return document.body.dataset.mdColorScheme") == COLOURS[scheme],
                f"the theme did not take its {scheme} colours",
            )
            assert [rule for rule in violations(driver) if rule.partition(":")[0] not in THEME] == []
            width = driver.execute_script("return document.documentElement.scrollWidth")
            assert width <= size[0], f"{width - size[0]} pixels too wide"
        assert "opbox" in driver.title
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", forget)
        resize(driver, DESKTOP)
        prefer(driver, "light")
