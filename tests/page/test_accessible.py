"""Checks that need no network, as lighthouse has them: axe-core's rules, a phone's width, titles, the order of tabs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.contract.live import FC, TOKENS, Live, Session
from tests.page.browser import DESKTOP, PHONE, prefer, resize
from tests.page.user import Key, User

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
RUN = """
    const done = arguments[arguments.length - 1];
    axe.run(document, { runOnly: arguments[0], resultTypes: ["violations"] }).then(
      (results) => done(results.violations.map((rule) =>
        `${rule.id}: ${rule.help}: ${rule.nodes.map((node) => node.html.slice(0, 160)).slice(0, 3).join(" ")}`)),
      (error) => done([String(error)]));
"""
VIEWS = {
    "sign in": ("", "", "h1"),
    "overview": ("boss", "#/", ".figures"),
    "models": ("boss", "#/models", 'th[data-label="Model"] a'),
    "model": ("ann", "#/models/animals/1", ".drawing svg .node"),
    "operators": ("ann", "#/ops", ".operators a"),
    "operator": ("ann", "#/ops/BatchNorm", "form.operator"),
    "last sessions": ("ann", "#/", 'td[data-label="Reported"]'),
    "session": ("ann", "#/sessions/{id}", ".drawing svg .node"),
    "curves": ("ann", "#/sessions/{id}", ".training-plot .curve"),
}


@pytest.fixture(scope="module")
def session(server: Live) -> Session:
    """A session of ann's with an executor."""
    one = server.session()
    shapes = {1: [2, 3], 2: [4, 3], 3: [4]}
    zeros = [{"do": "zeros", "ids": [id], "shape": shape, "dtype": "float32"} for id, shape in shapes.items()]
    bind = {"do": "bind", "id": 5, "graph": FC, "args": {"x": 1, "w": 2, "b": 3}}
    epochs = range(3)
    reports = [
        {"do": "report", "values": {"Train-accuracy": 0.1 * epoch, "loss": 0.5}, "epoch": epoch} for epoch in epochs
    ]
    assert one.run(*zeros, bind, *reports).status == 200
    ended = server.session()
    assert ended.run(*reports).status == 200
    ended.delete()
    return one


def show(user: User, view: str, session: Session) -> None:
    owner, address, sign = VIEWS[view]
    if owner:
        user.sign_in(owner, address.replace("{id}", session.id))
    else:
        user.open()
    user.wait_for(sign)


def violations(driver: Any) -> list[str]:
    package = find_spec("axe_core_python")
    assert package is not None
    assert package.origin is not None
    driver.execute_script((Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    return list(driver.execute_async_script(RUN, RULES))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_rule_of_axe_is_broken(user: User, session: Session, view: str, scheme: str) -> None:
    prefer(user.driver, scheme)
    show(user, view, session)
    try:
        assert violations(user.driver) == []
        resize(user.driver, PHONE)
        assert violations(user.driver) == []
        width = user.driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= PHONE[0], f"{width - PHONE[0]} pixels too wide for a phone"
    finally:
        resize(user.driver, DESKTOP)
        prefer(user.driver, "light")


SWAGGER_UI = {"landmark-main-is-top-level", "landmark-no-duplicate-main", "landmark-unique", "nested-interactive"}
"""Rules that Swagger UI's own elements break: a `main` of its own, and buttons within what is pressed to open a row."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_http_api_breaks_no_further_rule(user: User, scheme: str) -> None:
    prefer(user.driver, scheme)
    user.sign_in("ann")
    user.open("/docs")
    user.wait_for(".opblock")
    try:
        for size in (DESKTOP, PHONE):
            resize(user.driver, size)
            assert [rule for rule in violations(user.driver) if rule.partition(":")[0] not in SWAGGER_UI] == []
            width = user.driver.execute_script("return document.documentElement.scrollWidth")
            assert width <= size[0], f"{width - size[0]} pixels too wide"
        assert user.driver.execute_script("return document.documentElement.classList.contains('dark-mode')") == (
            scheme == "dark"
        )
    finally:
        resize(user.driver, DESKTOP)
        prefer(user.driver, "light")


def test_dark_is_dark(user: User) -> None:
    colours = []
    for scheme in ("light", "dark"):
        prefer(user.driver, scheme)
        user.open()
        user.wait_for("h1")
        colours.append(user.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    prefer(user.driver, "light")
    assert colours == ["rgb(244, 246, 249)", "rgb(17, 21, 28)"]


def test_views_have_titles_and_take_the_focus(user: User, session: Session) -> None:
    user.sign_in("ann")
    titles, current = [], []
    for view in ("#/ops", "#/ops/relu", f"#/sessions/{session.id}", "#/"):
        user.driver.execute_script("location.hash = arguments[0]", view)
        user.wait(lambda: "H1" in user.driver.execute_script("return document.activeElement.tagName"), "focus")
        titles.append(user.driver.title)
        current.append(user.text("#views [aria-current]"))
    expected = [
        "Operators · opbox",
        "relu · Operators · opbox",
        f"Session {session.id[:8]} · opbox",
        "Overview · opbox",
    ]
    assert titles == expected
    assert current == ["Operators", "Operators", "Overview", "Overview"]


def test_keys_alone_lead_through_the_page(user: User) -> None:
    user.open(f"/?token={TOKENS['ann']}")
    user.wait_for("#connection.live")
    user.driver.execute_script("document.activeElement.blur()")
    stops = []
    for _ in range(7):
        user.driver.switch_to.active_element.send_keys(Key.TAB)
        stops.append(user.focused.strip("|").strip())
    views = ["Overview", "Models", "Operators", "HTTP API"]
    assert stops == ["Skip to the content", "opbox", *views, "sign-out|Sign out"]
    user.driver.execute_script("document.querySelector('.skip').focus()")
    user.keys(Key.ENTER)
    assert user.focused.startswith("main|")
    assert user.driver.current_url.endswith(("/", "#/"))


RING = """
    const seen = (element) => {
      const box = element.getBoundingClientRect(), style = getComputedStyle(element);
      const inner = element.querySelector("rect"), { stroke, strokeWidth } = inner ? getComputedStyle(inner) : {};
      const ring = [style.outlineStyle, style.outlineWidth, style.outlineColor, style.boxShadow, stroke, strokeWidth];
      const inWidth = box.width > 0 && box.right > 0 && box.left < innerWidth;
      return [String(ring), inWidth && box.height > 0 && box.bottom > 0 && box.top < innerHeight];
    };
    const element = document.activeElement;
    if (element === document.body) return null;
    const [focused, inView] = seen(element);
    element.blur();
    const [plain] = seen(element);
    element.focus();
    const text = element.textContent.slice(0, 30);
    return [element.dataset.stop, `${element.tagName} ${element.id} ${text}`, focused !== plain, inView];
"""
"""Where the focus is: the element's mark, its name, whether a ring shows it, and whether it is in view."""
STOPS = """
    const usable = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
    return [...document.querySelectorAll(usable)]
      .filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0)
      .map((e, i) => e.dataset.stop = `${i} ${e.tagName} ${e.textContent.slice(0, 30)}`);
"""
"""Marks what the Tab key should reach, in its order."""
MAX_STOPS = 40
"""Maximum number of stops to try: of a list of some hundred operators the first will do."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_every_control_and_a_ring_shows_it(user: User, session: Session, view: str, scheme: str) -> None:
    prefer(user.driver, scheme)
    show(user, view, session)
    try:
        # What Tab starts from is what had the focus last: the document's beginning.
        user.driver.execute_script("document.body.tabIndex = -1; document.body.focus()")
        user.driver.execute_script("document.body.removeAttribute('tabindex')")
        expected = user.driver.execute_script(STOPS)[:MAX_STOPS]
        reached: list[str] = []
        for _ in expected:
            user.keys(Key.TAB)
            mark, name, ring, in_view = user.driver.execute_script(RING)
            assert ring, f"no ring shows the focus on {name}"
            assert in_view, f"{name} has the focus where nobody sees it"
            reached.append(mark)
        assert reached == expected
    finally:
        prefer(user.driver, "light")
