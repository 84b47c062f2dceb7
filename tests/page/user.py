"""What somebody does with the page: look for things, wait for them, press and type."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.contract.live import TOKENS, Live

T = TypeVar("T")


class Key:
    """Keys, as WebDriver writes them."""

    TAB, ENTER, ESCAPE, UP, DOWN = "\ue004", "\ue007", "\ue00c", "\ue013", "\ue015"


PATIENCE_S = 60.0


def number(text: str) -> float:
    """A number as the page writes it: commas part its thousands."""
    return float(text.replace(",", ""))


class User:
    """Somebody at a browser.

    Args:
        driver: selenium's.
        server: the one whose page it is.
        url: where the browser finds it, if a proxy is in between.
    """

    def __init__(self, driver: Any, server: Live, url: str = "") -> None:
        self.driver = driver
        self.server = server
        self.url = url or server.url

    def open(self, path: str = "/") -> None:
        """Open an address as if it were typed: the page is loaded anew."""
        self.driver.get("about:blank")
        self.driver.get(self.url + path)

    def sign_in(self, owner: str, view: str = "#/") -> None:
        """Sign in with a link, as `opbox serve` prints it, and wait until the page is live."""
        self.open(f"/?token={TOKENS[owner]}{view}")
        self.wait_for("#connection.live")

    def sign_out(self) -> None:
        """Forget the token, whatever is shown."""
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get("about:blank")

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def labels(self, selector: str) -> list[str]:
        """The names that screen readers say of all elements that a selector names."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getAttribute('aria-label'))"
        return [str(label) for label in self.driver.execute_script(script, selector)]

    def text(self, selector: str) -> str:
        """The text of all elements that a selector names; "" where there are none."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent).join('\\n')"
        return str(self.driver.execute_script(script, selector))

    def wait(self, condition: Callable[[], T], what: str) -> T:
        """Wait until a condition holds; what it gives."""
        until = time.monotonic() + PATIENCE_S
        while True:
            value = condition()
            if value:
                return value
            assert time.monotonic() < until, (
                f"{what}: not on the page after {PATIENCE_S:g} s: {self.text('main')[:2000]}"
            )
            time.sleep(0.1)

    def wait_for(self, selector: str, text: str = "") -> Any:
        """Wait for a visible element that has the text; the first."""

        def seen() -> Any:
            script = """
                return [...document.querySelectorAll(arguments[0])].find(
                    (e) => e.textContent.includes(arguments[1]) && e.getClientRects().length) ?? null
            """
            return self.driver.execute_script(script, selector, text)

        return self.wait(seen, f"{selector} {text!r}")

    def press(self, selector: str, text: str = "") -> None:
        """Press a button or link."""
        self.wait_for(selector, text).click()

    def type(self, selector: str, text: str) -> None:
        """Replace what a field has."""
        field = self.wait_for(selector)
        field.clear()
        field.send_keys(text)

    def keys(self, *keys: str) -> None:
        """Press keys, as at a keyboard: what has the focus gets them. A field for a file takes others as its path."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self) -> str:
        """The label, or the text, of what has the focus."""
        script = "const e = document.activeElement; return e.getAttribute('aria-label') ?? e.id + '|' + e.textContent"
        return str(self.driver.execute_script(script))

    def cell(self, session: str, column: str) -> float:
        """The number that the table of open sessions has for one; -1 where it is not there."""
        script = """
            const links = [...document.querySelectorAll(`a[href="#/sessions/${arguments[0]}"]`)];
            const link = links.find((one) => one.closest("table").caption.textContent === "Open sessions");
            return link?.closest("tr").querySelector(`[data-label="${arguments[1]}"]`).textContent ?? "-1";
        """
        return number(str(self.driver.execute_script(script, session, column)))

    def steps(self, session: str) -> int:
        """The steps of a session in the table; -1 where it is not there."""
        return int(self.cell(session, "Steps"))
