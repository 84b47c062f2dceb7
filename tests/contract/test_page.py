"""The page's files as the server gives them out: to anybody, with a policy that lets nothing in from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from opbox_service.cluster.gateway.routing import CLUSTER
from opbox_service.routes.table import ROUTES
from tests.contract.live import TOKENS, Live

FOLDER = Path(str(files("opbox_service"))) / "page"
NAMES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in NAMES if name.endswith(".js")]


LIBRARY = FOLDER / "swagger-ui"


def policy_of(answer: httpx.Response) -> dict[str, str]:
    return dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))


def test_the_page_needs_no_token_and_says_who_may_do_what_with_it(server: Live) -> None:
    answer = httpx.get(f"{server.url}/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = policy_of(answer)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_head_is_answered_as_get_without_the_body(server: Live) -> None:
    for path, token in (("/", None), ("/page/main.js", None), ("/v2/health/ready", None), ("/v1/ops", TOKENS["ann"])):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        got, head = httpx.get(server.url + path, headers=headers), httpx.head(server.url + path, headers=headers)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length", "content-security-policy"):
            assert head.headers.get(name) == got.headers.get(name), (path, name)
    assert httpx.head(f"{server.url}/v1/ops").status_code == 401
    assert (
        httpx.head(f"{server.url}/v1/forward", headers={"Authorization": f"Bearer {TOKENS['ann']}"}).status_code == 405
    )
    # A stream has no end, and its head comes all the same.
    events = httpx.head(f"{server.url}/v1/events", headers={"Authorization": f"Bearer {TOKENS['boss']}"})
    assert events.headers["content-type"].startswith("text/event-stream")


def test_all_that_the_page_names_is_there_and_nothing_else_is(server: Live) -> None:
    text = httpx.get(f"{server.url}/").text
    named = re.findall(r'(?:src|href)="\.(/[^"]*)"', text)
    assert len(named) >= 3
    for script in SCRIPTS:
        named += [f"/page/{name}" for name in re.findall(r'from "\./([\w.]+)"', (FOLDER / script).read_text())]
    for path in set(named):
        answer = httpx.get(f"{server.url}{path}")
        assert answer.status_code == 200, path
        assert "content-security-policy" in answer.headers
    for path in ("nothing.js", "__init__.py", "..%2fapp.py", "%2e%2e", "page.css%00"):
        assert httpx.get(f"{server.url}/page/{path}").status_code in (401, 404), path


def test_the_files_have_no_inline_code_no_other_host_and_no_html_from_strings() -> None:
    for name in ("index.html", "docs.html"):
        document = (FOLDER / name).read_text()
        assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)|https?:", document), name
    for name in SCRIPTS:
        text = (FOLDER / name).read_text()
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, (name, addresses)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert len(text.splitlines()) <= 300, name
    for style in FOLDER.glob("*.css"):
        assert "url(" not in style.read_text(), style.name


def test_the_paths_that_the_page_calls_are_routes() -> None:
    (block,) = re.findall(r"export const PATHS = \{(.*?)\};", (FOLDER / "api.js").read_text(), re.DOTALL)
    paths = re.findall(r'"([^"]+)"', block)
    assert len(paths) == 23
    assert set(paths) - {CLUSTER} <= {route.path for route in ROUTES}  # that one is the gateway's


def test_the_api_s_page_comes_from_this_server_alone(server: Live) -> None:
    answer = httpx.get(f"{server.url}/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = policy_of(answer)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:"
    named = re.findall(r'(?:src|href)="\.(/[^"#]+)"', answer.text)
    assert {path.partition("?")[0] for path in named} >= {"/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js"}
    for path in named:
        assert httpx.get(f"{server.url}{path}").status_code == 200, path
    for path in ("/docs/README.md", "/docs/NOTICE", "/docs/..%2fmain.js", "/page/swagger-ui", "/page/swagger-ui.css"):
        assert httpx.get(f"{server.url}{path}").status_code in (401, 404), path


def test_the_vendored_library_is_the_version_that_is_named_and_has_its_licence(server: Live) -> None:
    (version,) = set(re.findall(r"swagger-ui[\w.-]+\?([\d.]+)\"", (FOLDER / "docs.html").read_text()))
    assert f"Swagger UI {version}," in (LIBRARY / "README.md").read_text()
    assert version in (LIBRARY / "swagger-ui-bundle.js").read_text()
    assert "Apache License" in (LIBRARY / "LICENSE").read_text()
    assert "SmartBear" in (LIBRARY / "NOTICE").read_text()
    licences = httpx.get(f"{server.url}/docs/swagger-ui-bundle.js.LICENSE.txt")
    assert licences.headers["content-type"] == "text/plain; charset=utf-8"
    assert licences.content == (LIBRARY / "swagger-ui-bundle.js.LICENSE.txt").read_bytes()


def test_a_name_that_is_resolved_anew_gets_no_page(server: Live) -> None:
    for path in ("/", "/page/main.js", f"/?token={TOKENS['ann']}"):
        answer = httpx.get(f"{server.url}{path}", headers={"Host": "evil.example:8000"})
        assert answer.status_code == 403, path
        assert "OPBOX_ALLOWED_HOSTS" in answer.json()["error"]


def test_a_token_in_the_address_is_in_no_log_and_makes_nobody_signed_in(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_LOG_REQUESTS="1", OPBOX_LOG_LEVEL="debug")
    secret = TOKENS["ann"]
    answer = httpx.get(f"{server.url}/?token={secret}")
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert secret not in answer.text
    assert httpx.get(f"{server.url}/v1/sessions?token={secret}").status_code == 401
    assert httpx.get(f"{server.url}/nothing?token={secret}").status_code in (401, 404)
    assert httpx.post(f"{server.url}/?token={secret}").status_code >= 400
    log = Path(server.log.name).read_text()
    assert '"/"' in log
    assert secret not in log


def test_the_page_can_be_switched_off(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_PAGE="0")
    assert httpx.get(f"{server.url}/").status_code == 401
    for path in ("/", "/page/main.js", "/docs", "/docs/swagger-ui.css"):
        assert server.clients["ann"].get(path).status_code == 404
    assert server.json("GET", "/v1/sessions").status == 200


@pytest.mark.parametrize("fresh", [True, False], ids=["a token that was made", "a token of the settings"])
def test_the_program_prints_where_the_page_is(start: Callable[..., Live], fresh: bool) -> None:
    server = start("none", **({"OPBOX_TOKENS": ""} if fresh else {}))
    assert server.process.stdout is not None
    kind, _, link = server.process.stdout.readline().strip().partition(": ")
    assert kind == "page"
    address, _, token = link.partition("?token=")
    assert address == f"{server.url}/"
    assert token == (server.announced.removeprefix("token: ") if fresh else "")
    assert httpx.get(link).status_code == 200
    if fresh:
        headers = {"Authorization": f"Bearer {token}"}
        assert json.loads(httpx.get(f"{server.url}/v1/sessions", headers=headers).text) == {"sessions": []}
