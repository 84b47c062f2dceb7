"""The page's view of a cluster: nodes, what is free there, sessions of all nodes, and where models are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from opbox_service.cluster.documents import NodeReport, ReplicaReport, SessionReport
from opbox_service.session_ids import node_of
from tests.cluster.gateway_nodes import Box
from tests.contract.live import Live
from tests.page.browser import PHONE, prefer, resize
from tests.page.test_accessible import violations
from tests.page.test_page import asked_home_only
from tests.page.user import User

MIB = 1 << 20


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """Two nodes, each with a session of ann's, and one that was lost."""
    with Box(tmp_path_factory.mktemp("box"), "abc") as box:
        ids: list[str] = []
        while {node_of(id) for id in ids} != {"a", "b"}:
            ids.append(box.ann.post("/v1/sessions", json={}).json()["id"])

        def report() -> None:
            for name in "ab":
                sessions = tuple(SessionReport(id, "ann", "cpu", MIB) for id in ids if node_of(id) == name)
                models = {"digits": ReplicaReport(("1",))}
                box.controller.report(name, NodeReport({"cpu": 256 * MIB}, sessions, models, queue=3), 0.0)
            box.controller.lost("c", 0.0)

        box.change(report)
        yield box


@pytest.fixture
def visitor(box: Box, driver: Any) -> Iterator[User]:
    """Somebody at the browser, whose address is the gateway's."""
    for log in ("browser", "performance"):  # what was asked for another test
        driver.get_log(log)
    one = User(driver, box.lives["a"], box.url)
    yield one
    one.sign_out()


def test_nodes_and_replicas_are_shown_with_what_is_free(visitor: User) -> None:
    visitor.sign_in("boss")
    visitor.press("#views a", "Cluster")
    visitor.wait_for('th[data-label="Node"]', "a")
    assert visitor.driver.title == "Cluster · opbox"
    assert visitor.text("#views [aria-current]") == "Cluster"
    assert visitor.text(".figure .value").split("\n")[0] == "2 of 3"
    rows = visitor.text("main tbody").split("\n")[0]
    assert "256 MiB of 1.0 GiB" in rows
    assert visitor.text('td[data-label="State"]').split("\n") == ["ready", "ready", "lost"]
    assert visitor.text('td[data-label="Queue"]').split("\n") == ["3", "3", "0"]
    assert visitor.text('td[data-label="Models"]').split("\n") == ["digits", "digits", "–"]
    assert visitor.text('td[data-label="Nodes"]') == "a, b"
    asked_home_only(visitor)


def test_who_may_not_see_others_sees_no_numbers_of_sessions(visitor: User, box: Box) -> None:
    answer = box.ann.get("/v1/cluster").json()
    assert "waiting" not in answer
    assert all("sessions" not in node and "queue" not in node for node in answer["nodes"])
    visitor.sign_in("ann", "#/cluster")
    visitor.wait_for('th[data-label="Node"]', "a")
    assert visitor.text("main dt") == "Nodes ready"
    assert not visitor.all('td[data-label="Sessions"]')


def test_sessions_of_all_nodes_are_listed_and_opened(visitor: User, box: Box) -> None:
    sessions = box.ann.get("/v1/sessions").json()["sessions"]
    visitor.sign_in("ann")
    for session in sessions:
        visitor.wait_for(f'a[href="#/sessions/{session["id"]}"]')
    other = next(row["id"] for row in sessions if row["node"] != visitor.text("main .note").split()[1])
    visitor.press(f'a[href="#/sessions/{other}"]')
    visitor.wait_for('dd[data-name="Owner"]', "ann")
    visitor.press("button.danger", "End session")
    visitor.press("dialog button", "End session")
    visitor.wait(lambda: box.ann.get(f"/v1/sessions/{other}").status_code == 410, "its end")
    assert "was deleted" in box.ann.get(f"/v1/sessions/{other}").json()["error"]


def test_the_controller_s_death_is_said_and_the_nodes_stay(visitor: User, box: Box) -> None:
    visitor.sign_in("boss", "#/cluster")
    visitor.wait_for('th[data-label="Node"]', "a")
    controllers = box.front.gateway._controllers
    broken = {"directory": _refuse, "summary": _refuse}
    for name, method in broken.items():
        setattr(controllers, name, method)
    try:
        visitor.wait_for("main .error", "The controller is not reached")
        assert visitor.text('td[data-label="State"]').split("\n") == ["ready", "ready", "lost"]
    finally:
        for name in broken:
            delattr(controllers, name)
    visitor.wait(lambda: visitor.text("main .error") == "", "the controller")


async def _refuse(*_: object) -> Any:
    raise OSError("gone")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_axe_is_broken(visitor: User, scheme: str) -> None:
    prefer(visitor.driver, scheme)
    visitor.sign_in("boss", "#/cluster")
    visitor.wait_for('th[data-label="Node"]', "a")
    try:
        assert violations(visitor.driver) == []
        resize(visitor.driver, PHONE)
        assert violations(visitor.driver) == []
    finally:
        prefer(visitor.driver, "light")
        resize(visitor.driver, (1280, 900))


def test_a_server_alone_has_no_such_view(user: User, server: Live) -> None:
    user.sign_in("ann", "#/cluster")
    user.wait_for("h1", "Overview")
    assert not user.all("#views a[href='#/cluster']:not([hidden])")


def test_a_node_s_own_page_has_no_such_view(driver: Any, box: Box) -> None:
    node = User(driver, box.lives["b"])
    node.sign_in("ann", "#/cluster")
    node.wait_for("main .note", "Node b of a cluster.")
    assert not node.all("#views a[href='#/cluster']:not([hidden])")
    node.sign_out()
