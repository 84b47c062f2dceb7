"""The page as somebody uses it: signing in, watching a training run, running an operator, ending sessions."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from tests.contract.live import TOKENS, Live, symbol, var
from tests.link.nginx import Nginx, needs_nginx
from tests.page.conftest import Training
from tests.page.user import Key, User, number

FOLDER = Path(str(files("opbox_service"))) / "page"

Train = Callable[[str], Training]


def test_a_link_signs_in_and_leaves_no_token_behind(user: User, server: Live) -> None:
    user.sign_in("ann")
    assert user.driver.current_url == f"{server.url}/#/"
    assert user.text("#owner") == "ann"
    assert user.driver.get_cookies() == []
    assert user.driver.execute_script("return localStorage.length") == 0
    user.driver.refresh()
    user.wait_for("#connection.live")
    assert TOKENS["ann"] not in Path(server.log.name).read_text()
    user.press("#sign-out")
    user.wait_for("h1", "Sign in")
    user.driver.refresh()
    user.wait_for("h1", "Sign in")
    assert user.text("#owner") in ("", "ann")
    assert not user.all("#who:not([hidden])")


def test_a_wrong_token_is_told_so_and_a_right_one_typed(user: User) -> None:
    user.open()
    assert user.wait(lambda: "token" in user.focused, "focus on the field")
    user.keys("wrong-secret", Key.ENTER)
    user.wait_for(".sign-in .error", "expected one that this server knows")
    user.type("#token", TOKENS["ann"])
    user.keys(Key.ENTER)
    user.wait_for("#connection.live")


def test_a_token_that_may_not_watch_is_told_the_scopes(user: User) -> None:
    user.open(f"/?token={TOKENS['cuda']}")
    user.wait_for(".sign-in .error", "'run'")


def test_a_training_run_is_watched_and_its_network_drawn(user: User, train: Train) -> None:
    session = train("ann").session
    user.sign_in("ann")
    before = user.wait(lambda: user.steps(session) > 0 and user.steps(session), "steps")
    user.wait(lambda: user.steps(session) > before, "more steps")
    user.wait(lambda: user.cell(session, "Steps/s") > 0, "steps per second")
    user.wait_for('th[data-label="Route"]', "POST /v1/sessions/{id}/commands")
    user.press(f'a[href="#/sessions/{session}"]')
    user.wait_for(".drawing svg .node", "Convolution")
    assert session[:8] in user.driver.title
    labels = user.labels(".drawing .node")
    assert "data, 20 × 1 × 8 × 8 float32" in labels
    assert "Convolution conv1, 20 × 20 × 8 × 8 float32" in labels
    assert "SoftmaxOutput softmax, 20 × 10 float32" in labels
    assert not any("weight" in label for label in labels)
    colors = user.driver.execute_script(
        "return [...document.querySelectorAll('.drawing .node rect')].map((e) => getComputedStyle(e).fill)"
    )
    assert len(set(colors)) > 2, "the drawing's style sheet is not the page's"
    user.press(".tools .check")
    user.wait_for(".drawing .node", "conv1_weight")
    user.wait(lambda: re.search(r"[\d,]+ runs forward, [\d,]+ backward", user.text("section .note")), "runs")
    assert number(user.text(".figure .value").split("\n")[0]) > 0


def test_a_network_is_read_by_keys_and_as_a_table(user: User, train: Train) -> None:
    user.sign_in("ann", f"#/sessions/{train('ann').session}")
    user.wait_for(".drawing svg .node", "Convolution")
    user.driver.execute_script("document.querySelector('.drawing .node[tabindex=\"0\"]').focus()")
    assert user.focused.startswith("data, 20 × 1 × 8 × 8 float32")
    user.keys(Key.DOWN)
    assert user.focused.startswith("Convolution conv1")
    user.wait_for(".node-details", "num_filter")
    user.keys(Key.UP)
    assert user.focused.startswith("data")
    user.press("details summary", "table")
    user.wait_for('details th[data-label="Node"]', "conv1_weight")


def test_blocks_that_repeat_are_drawn_once(user: User, server: Live) -> None:
    session = server.session()
    count = 12
    nodes = [var("x")]
    for i in range(count):
        at = len(nodes)
        nodes += [var(f"fc{i}_weight"), var(f"fc{i}_bias")]
        nodes.append(("FullyConnected", f"fc{i}", {"num_hidden": "4"}, [at - 1, at, at + 1]))
        nodes.append(("Activation", f"relu{i}", {"act_type": "relu"}, [at + 2]))
    args = {node[1]: number for number, node in enumerate(nodes, 1) if node[0] == "null"}
    zeros = [
        {
            "do": "zeros",
            "ids": [id],
            "shape": [4] if "bias" in name else [2 if name == "x" else 4, 4],
            "dtype": "float32",
        }
        for name, id in args.items()
    ]
    assert session.run(*zeros, {"do": "bind", "id": 1000, "graph": symbol(*nodes), "args": args}).status == 200
    user.sign_in("ann", f"#/sessions/{session.id}")
    user.wait_for(".drawing svg", f"× {count}")
    assert len(user.all(".drawing .node")) == 3
    assert user.all(".drawing .o-frame")
    user.press(".drawing .node", "relu0")
    user.wait_for(".node-details", f"Drawn for {count}")
    user.wait_for(".node-details", "relu0, relu1")
    user.press(".tools .check", "Fold")
    user.wait_for(".drawing .node", f"fc{count - 1}")
    assert len(user.all(".drawing .node")) == 1 + 2 * count
    assert not user.all(".drawing .o-frame")


def test_an_operator_is_searched_and_run(user: User) -> None:
    user.sign_in("ann", "#/ops")
    user.wait_for(".note", "operators")
    user.type("#search", "fully conn")
    user.wait_for(".operators a", "FullyConnected")
    assert len(user.all(".operators li")) < 5
    user.press(".operators a", "FullyConnected")
    user.wait_for("form.operator h2", "FullyConnected")
    user.type("#param-num_hidden", "2")
    user.type("#input-data-shape", "2, 3")
    user.press("button", "Infer shapes")
    user.wait_for(".results", "weight")
    assert "2 × 3" in user.text(".results tbody")
    user.type("#input-data-values", "[[1, 2, 3], [4, 5, 6]]")
    user.type("#input-weight-values", "[[1, 0, -1], [0.5, 0.5, 0.5]]")
    user.type("#input-bias-values", "10 20")
    user.press("button", "Forward")
    user.wait_for(".results figcaption", "out_output: 2 × 2 FP32")
    data, weight = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[1, 0, -1], [0.5, 0.5, 0.5]])
    assert json.loads(user.text(".results figure pre")) == (data @ weight.T + [10, 20]).tolist()
    user.press("button", "Backward")
    user.wait_for(".results figcaption", "gradient of weight: 2 × 3 FP32")
    gradient = json.loads(user.text(".results figure:nth-of-type(3) pre"))
    assert gradient == (np.ones((2, 2)).T @ data).tolist()
    assert TOKENS["ann"] not in user.text("main")
    assert "$OPBOX_TOKEN" in user.text(".results details pre")


def test_empty_inputs_are_filled_and_parameters_decide_which_there_are(user: User) -> None:
    user.sign_in("ann", "#/ops/FullyConnected")
    user.wait_for("#input-bias-values")
    user.driver.execute_script(
        "const e = document.getElementById('param-no_bias'); e.value = 'True'; "
        "e.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    user.wait(lambda: not user.all("#input-bias-values"), "no bias")
    user.press("button", "Forward")
    user.wait_for(".results figcaption", "out_output: 3 × 5 FP32")
    weight = user.driver.execute_script("return document.getElementById('input-weight-values').value")
    assert np.array(json.loads(weight)).shape == (5, 4)


FIRST_CLICKS = """
    const [names, done] = arguments;
    const until = async (condition) => {
        while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    const form = () => document.querySelector("form.operator");
    (async () => {
        const answers = {};
        for (const name of names) {
            location.hash = `#/ops/${name}`;
            await until(() => form()?.querySelector("h2").textContent === name);
            const own = form(), button = own.querySelector("button.main");
            const said = [];
            for (const one of button ? [...own.querySelectorAll(".actions button")] : []) {
                one.click();
                await until(() => !one.disabled);
                const trouble = own.querySelector(":scope > .error").textContent;
                said.push(trouble || own.querySelector(".results h3").textContent);
            }
            answers[name] = button ? said : [own.querySelector(":scope > .why")?.textContent ?? ""];
        }
        return answers;
    })().then(done, (error) => done({ error: [String(error)] }));
"""


def test_every_operator_s_form_works_at_the_first_click(user: User) -> None:
    presets = json.loads((FOLDER / "presets.json").read_text(encoding="utf-8"))
    user.sign_in("ann", "#/ops")
    user.wait_for(".note", "operators")
    answers: dict[str, list[str]] = {}
    names = sorted(presets)
    for start in range(0, len(names), 20):  # a script has its time
        answers |= user.driver.execute_async_script(FIRST_CLICKS, names[start : start + 20])
    said = {name: text for name, text in answers.items() if "why" not in presets[name]}
    assert len(said) > 350
    words = {"Shapes", "Outputs", "Gradients and outputs"}
    assert {name: text for name, text in said.items() if not set(text) <= words or "Outputs" not in text} == {}
    for name in answers.keys() - said.keys():
        assert answers[name] == [presets[name]["why"]]


def test_operators_are_folded_by_family(user: User) -> None:
    user.sign_in("ann", "#/ops")
    user.wait_for("details.family summary", "Layers")
    assert not [link for link in user.all(".operators a") if link.is_displayed()]
    user.press("details.family summary", "Layers")
    user.press(".operators a", "Pooling")
    user.wait_for("form.operator h2", "Pooling")
    assert user.text("details.family[open] summary").startswith("Layers")
    user.type("#search", "pool")
    user.wait(lambda: not user.all("details.family"), "a flat list of what matches")
    user.wait_for(".operators a", "ROIPooling")


def test_what_is_wrong_is_said_in_a_sentence(user: User) -> None:
    user.sign_in("ann", "#/ops/FullyConnected")
    user.type("#input-data-shape", "2, 3")
    for values, sentence in (
        ("[[1, 2], [3]]", "expected lists of equal lengths"),
        ("1 2 x 4 5 6", 'expected numbers, got "x"'),
        ("1 2 3", "expected 6 values for the shape 2, 3, got 3"),
    ):
        user.type("#input-data-values", values)
        user.press("button", "Forward")
        user.wait_for("form.operator > .error", sentence)
    user.type("#input-data-values", "1 2 3 4 5 6")
    user.type("#input-weight-values", "[[1, 2], [3, 4]]")
    user.press("button", "Forward")
    user.wait_for("form.operator > .error", "weight")
    user.open(f"/?token={TOKENS['ann']}#/ops/NoSuchThing")
    user.wait_for("main .error", "No operator is called NoSuchThing")


def test_a_training_shows_its_metrics_while_it_runs_and_afterwards(user: User, train: Train) -> None:
    run = train("ann")
    user.sign_in("ann", f"#/sessions/{run.session}")
    user.wait_for(".training-plot .plot-title", "accuracy")
    user.wait_for(".training-plot .plot-title", "cross-entropy")
    user.wait_for(".training-plot .legend li", "Validation")
    path = "return document.querySelector('.training-plot .curve.c0 path').getAttribute('d').length"
    before = int(user.driver.execute_script(path))
    user.wait(lambda: int(user.driver.execute_script(path)) > before, "a longer curve")
    label = user.driver.execute_script(
        "return document.querySelector('.training-plot .plot').getAttribute('aria-label')"
    )
    assert re.fullmatch(r"accuracy by step\. Train: [\d.]+ at step \d+, .*Validation: .* at step \d+\.", label)
    user.press(".training-plot summary", "Numbers")
    user.wait_for(".training-plot td", "Validation")
    assert user.text('dd[data-name="Program"]') == "python"
    assert user.text('dd[data-name="Host"]') == socket.gethostname()
    user.open(f"/?token={TOKENS['boss']}#/sessions/{run.session}")
    user.wait_for(".note", "shown to its owner, ann")
    assert not user.all(".training-plot")
    user.open(f"/?token={TOKENS['ann']}#/sessions/{run.session}")
    user.wait_for(".training-plot .legend li", "Train")
    user.server.json("DELETE", f"/v1/sessions/{run.session}")
    user.wait_for(".note", "This session has ended: was deleted.")
    assert user.all(".training-plot")
    user.press('#views a[href="#/"]')
    user.wait_for('td[data-label="Reported"]', "Validation-accuracy")
    user.press(f'a[href="#/sessions/{run.session}"]')
    user.wait_for(".training-plot .legend li", "Validation")
    assert user.text('dd[data-name="Program"]') == "python"
    user.open(f"/?token={TOKENS['bob']}#/sessions/{run.session}")
    user.wait_for(".note", "There is no such session")


def test_datasets_are_listed(user: User, server: Live) -> None:
    rows = np.arange(6, dtype=np.uint8).reshape(3, 2)
    block = hashlib.sha256(rows.tobytes()).hexdigest()
    array = {"shape": [3, 2], "dtype": "uint8", "block_rows": 3, "blocks": [block]}
    assert server.call("PUT", f"/v1/blocks/{block}", {}, {"rows": rows}, owner="bob").status == 200
    body = {"arrays": {"data": array}, "published": True}
    assert server.call("PUT", "/v1/datasets/digits", body, owner="bob").status == 200
    user.sign_in("ann")
    user.wait_for("section", "data 3 × 2 uint8")
    assert server.call("DELETE", "/v1/datasets/digits", owner="bob").status == 200


def test_an_owner_ends_a_session_after_a_question(user: User, train: Train) -> None:
    run = train("ann")
    session, program = run.session, run.program
    user.sign_in("ann")
    user.wait(lambda: user.steps(session) > 0, "steps")
    button = f'button[aria-label="End session {session}"]'
    user.press(button)
    user.wait_for("dialog[open] h2", session[:8])
    assert "Cancel" in user.focused
    user.keys(Key.ESCAPE)
    user.wait(lambda: not user.all("dialog"), "no question")
    assert user.steps(session) > 0
    user.press(button)
    user.press("dialog[open] .danger")
    user.wait(lambda: user.steps(session) == -1, "the session's end")
    assert program.wait(60) != 0
    assert program.stderr is not None
    assert "was deleted" in program.stderr.read()


def test_an_administrator_ends_somebody_s_and_a_user_does_not_see_it(user: User, server: Live) -> None:
    session = server.session(owner="bob")
    user.sign_in("ann")
    user.wait_for("h2", "Sessions")
    assert user.steps(session.id) == -1
    user.sign_in("boss", f"#/sessions/{session.id}")
    user.wait_for(".facts", "bob")
    user.wait_for("section .note", "shown to its owner, bob")
    user.press(".heading .danger")
    user.wait_for("dialog[open]", "a session of bob")
    user.press("dialog[open] .danger")
    user.wait_for("h2", "Devices")
    answer = session.run()
    assert (answer.status, "administrator" in answer.error) == (410, True)
    user.wait_for('th[data-label="Error"]', "ended by an administrator")


def test_the_page_asks_no_other_host_and_breaks_no_rule_of_its_own(user: User) -> None:
    user.driver.get_log("performance")
    user.sign_in("ann")
    for view in ("#/ops", "#/ops/relu", "#/"):
        user.driver.execute_script("location.hash = arguments[0]", view)
        user.wait_for("h1")
    asked_home_only(user)


def test_the_http_api_is_listed_and_tried(user: User, server: Live) -> None:
    document = server.json("GET", "/openapi.json").header
    operations = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    user.driver.get_log("performance")
    user.open("/docs")
    user.wait_for("h1", "Sign in")
    user.type("#token", TOKENS["ann"])
    user.keys(Key.ENTER)
    user.wait_for(".opblock")
    assert len(user.all(".opblock")) == len(operations)
    infer = "#operations-graphs-infer_shape"
    user.press(f"{infer} .opblock-summary-control")
    user.press(f"{infer} .try-out__btn")
    user.press(f"{infer} .execute")
    user.wait_for(f"{infer} .live-responses-table .response-col_status", "200")
    assert '"complete": true' in user.text(f"{infer} .live-responses-table")
    assert '"Authorization: Bearer $OPBOX_TOKEN"' in user.text(f"{infer} .curl-command, {infer} .request-snippets")
    assert TOKENS["ann"] not in user.text("body")
    asked_home_only(user)


@needs_nginx
def test_under_a_path(user: User, server: Live, tmp_path: Path) -> None:
    """Behind nginx, which takes the path off: the page, its calls, Swagger UI and its calls."""
    with Nginx(tmp_path, f"location /opbox/ {{ proxy_pass {server.url}/; }}") as nginx:
        outside = User(user.driver, server, f"{nginx.url}/opbox")
        outside.driver.get_log("performance")
        outside.sign_in("ann", "#/ops/relu")
        outside.wait_for("h2", "relu")
        outside.press("#views a", "HTTP API")
        about = "#operations-health-server_metadata"
        outside.press(f"{about} .opblock-summary-control")
        outside.press(f"{about} .try-out__btn")
        outside.press(f"{about} .execute")
        outside.wait_for(f"{about} .live-responses-table .response-col_status", "200")
        assert f"{outside.url}/v2" in outside.text(f"{about} .request-url")
        asked_home_only(outside)


DRAWN = r"/page/api\.js \d+ Applying inline style"
"""A drawing's style sheet is refused in the document that it comes in; the page takes it from there as its own."""


def asked_home_only(user: User) -> None:
    """Nothing was asked of another host since the log was last read, and the browser has nothing to complain of."""
    events: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in user.driver.get_log("performance")
    ]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert urls
    own = (user.url, "about:", "data:", "chrome://")
    assert {url for url in urls if not url.startswith(own)} == set()
    severe = [entry["message"] for entry in user.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in severe if not re.search(DRAWN, message)] == []


def test_the_page_waits_for_a_server_that_comes_back(user: User, tmp_path: Path) -> None:
    passing = Live("none", tmp_path)
    other = User(user.driver, passing)
    other.sign_in("ann")
    passing.stop()
    other.wait_for("#connection.lost", "Connecting")
