"""Three nodes of Ray on this machine, each with a server: joining, placing, draining, and deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.model_load import Load
from tests.cluster.ray_cluster import TOKENS, USUAL, Nodes, call, nodes_in, opened, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

TRAINING = """
import sys
import numpy as np
import opbox as mx
from opbox.operator import CustomOp, CustomOpProp, register
mx.connect(sys.argv[1], token=sys.argv[2])

class Double(CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

@register("double")
class DoubleProp(CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)
    def create_operator(self, ctx, shapes, dtypes):
        return Double()

x = mx.nd.array(np.arange(4, dtype="float32"))
for step in range(20):
    x = x + 1
total = mx.nd.Custom(x, op_type="double").asnumpy().sum()
print(total)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="oc", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield from nodes_in(Path(folder), 3)


def test_each_node_serves_with_the_same_owners_and_its_own_name(nodes: Nodes) -> None:
    for name in "abc":
        row = nodes.status(name)
        assert row["devices"]["cpu"]["bytes"] == 64 << 20
        session = opened(row["url"], "bob")
        assert session["id"].startswith(f"{name}-")
        until(lambda name=name: nodes.status(name)["sessions"] == 1, "the session is reported")
        assert call(row["url"], "DELETE", f"/v1/sessions/{session['id']}", owner="bob")[0] == 200


def test_sessions_are_placed_over_the_nodes(nodes: Nodes) -> None:
    from opbox_service.cluster.documents import PlacedSession, Refused, Waiting

    places = [nodes.place(number, nbytes=24 << 20) for number in range(100, 106)]
    assert all(isinstance(place, PlacedSession) for place in places)
    assert sorted(place.node for place in places) == ["a", "a", "b", "b", "c", "c"]
    assert isinstance(nodes.place(106, nbytes=24 << 20), Waiting)
    until(lambda: isinstance(nodes.place(107, nbytes=1 << 40), Refused), "what fits nowhere is refused")
    assert nodes.ask("status")["waiting"]["cpu"] >= 1
    for number in range(100, 108):
        nodes.ask("cancel", f"{number:032x}")


def test_a_controller_that_is_killed_has_its_state_again(nodes: Nodes) -> None:
    url = nodes.status("b")["url"]
    session = opened(url)
    until(lambda: nodes.ask("where", session["id"]) == url, "the controller knows the session")
    pid = nodes.ask("begin")
    os.kill(pid, signal.SIGKILL)
    until(lambda: nodes.ask("begin") != pid, "the controller runs again")
    assert nodes.ask("where", session["id"]) == url
    for name in "abc":
        row = until(lambda name=name: (row := nodes.until_state(name, "ready"))["starts"] and row, "its actor answers")
        assert row["starts"] == 1
    assert nodes.status("b")["url"] == url
    assert call(url, "DELETE", f"/v1/sessions/{session['id']}")[0] == 200


def test_as_many_nodes_serve_a_model_as_its_file_says(nodes: Nodes) -> None:
    """Each server that starts loads the model; those that are too many unload it."""

    def serving(count: int) -> Any:
        names = nodes.ask("directory", -1).models.get("net", ())
        return len(names) == count and names

    def state(name: str) -> str:
        _, models = call(nodes.status(name)["url"], "GET", "/v1/models")
        return str(models["models"][0]["state"])

    file = nodes.folder / "models" / "net" / "model.toml"
    text = file.read_text()
    names = until(lambda: serving(2), "two nodes serve it")
    (other,) = set("abc") - set(names)
    until(lambda: state(other) == "UNAVAILABLE", "the third has unloaded it")
    inputs = {"inputs": [{"name": "data", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    for name in names:
        status, answer = call(nodes.status(name)["url"], "POST", "/v2/models/net/infer", inputs)
        assert status == 200, answer
        assert answer["outputs"][0]["data"] == [6, 6]
    file.write_text(text.replace("replicas = 2", "replicas = 3"))
    until(lambda: serving(3), "three nodes serve it")
    assert state(other) == "READY"


def test_two_scripts_at_once_with_code_of_their_own(nodes: Nodes) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPBOX_", "RAY_"))}
    urls = {owner: nodes.placed(200 + number, owner).url for number, owner in enumerate(("ann", "bob"))}
    scripts = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINING, url, TOKENS[owner]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for owner, url in urls.items()
    ]
    for script in scripts:
        output = script.communicate(timeout=300)[0]
        assert output.split()[-1:] == ["172.0"], output


def test_a_server_that_dies_is_started_again(nodes: Nodes) -> None:
    row = nodes.status("c")
    os.kill(row["pid"], signal.SIGKILL)
    until(lambda: nodes.status("c")["starts"] == 2 and nodes.status("c")["state"] == "ready", "it is ready again")
    assert call(nodes.status("c")["url"], "GET", "/v2/health/ready")[0] == 200


def test_servers_have_no_token_of_ray(nodes: Nodes) -> None:
    for name in "abc":
        environment = psutil.Process(nodes.status(name)["pid"]).environ()
        assert not [key for key in environment if key.startswith("RAY_")]


def test_new_owners_reach_all_nodes(nodes: Nodes) -> None:
    import json

    TOKENS["cid"] = "cid-secret-of-22-characters"
    rows = [{"name": name, "token": token, "scopes": ["run", "upload-python"]} for name, token in TOKENS.items()]
    nodes.tokens_file.write_text(json.dumps({"tokens": rows}))
    for name in "abc":
        url = nodes.status(name)["url"]
        until(lambda url=url: call(url, "GET", "/v1/sessions", owner="cid")[0] == 200, "the new token is taken")


def test_a_wrong_tokens_file_is_said_and_the_last_tokens_hold(nodes: Nodes) -> None:
    text = nodes.tokens_file.read_text()
    nodes.tokens_file.write_text(text[:-1])
    try:
        failure = until(lambda: nodes.ask("status")["tokens"], "the status says it")
        assert failure.startswith(f"the last tokens hold: {nodes.tokens_file}: expected a JSON list of tokens")
        assert call(nodes.status("b")["url"], "GET", "/v1/sessions")[0] == 200
    finally:
        nodes.tokens_file.write_text(text)
    until(lambda: not nodes.ask("status")["tokens"], "the file is right again")


def test_a_quota_holds_for_all_nodes_together(nodes: Nodes) -> None:
    import json

    document = json.loads(nodes.tokens_file.read_text())
    nodes.tokens_file.write_text(json.dumps({"tokens": document["tokens"], "owners": {"bob": {"sessions": 2}}}))
    urls = {name: nodes.status(name)["url"] for name in "abc"}

    def refuses(url: str) -> bool:
        status, session = call(url, "POST", "/v1/sessions", {}, owner="bob")
        if status == 201:
            call(url, "DELETE", f"/v1/sessions/{session['id']}", owner="bob")
        return status == 429

    for url in urls.values():  # nobody has placed a session of bob's there
        until(lambda url=url: refuses(url), "the node has bob's share, which is nothing")
    opened = []
    for number in (500, 501):
        url = nodes.placed(number, "bob").url
        status, session = call(url, "POST", "/v1/sessions", {}, owner="bob")
        assert status == 201
        opened.append((url, session["id"]))
    until(lambda: sum(nodes.status(name)["sessions"] for name in "abc") == 2, "both are reported")
    refused = until(lambda: not hasattr(answer := nodes.place(502, "bob"), "url") and answer, "there is no third place")
    assert "sessions" in refused.reason
    for url, session in opened:
        assert call(url, "DELETE", f"/v1/sessions/{session}", owner="bob")[0] == 200


def test_owners_without_terms_have_the_usual_quota_over_all_nodes(nodes: Nodes) -> None:
    """It is a server's OPBOX_MAX_SESSIONS, and each node alone would allow as many."""
    from opbox_service.cluster.documents import PlacedSession, Refused

    numbers = range(600, 600 + int(USUAL["sessions"]))

    def refused() -> Any:
        """The answer for one more than there may be; some wait until nodes have told what they do not use."""
        places = [nodes.place(number, "dan", 1 << 20) for number in numbers]
        more = nodes.place(650, "dan", 1 << 20)
        return all(isinstance(place, PlacedSession) for place in places) and isinstance(more, Refused) and more

    assert "expected at most 12 of an owner on all nodes together" in until(refused, "the quota is used up").reason
    for number in [*numbers, 650]:
        nodes.ask("cancel", f"{number:032x}")


def test_a_node_without_the_token_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    from opbox_protocol.errors import BadRequestError
    from opbox_service.cluster.machine_record import new_ray_token
    from opbox_service.cluster.ray_start import RayPorts, RayProcess

    stranger = RayProcess(new_ray_token(), tmp_path)
    with pytest.raises(BadRequestError, match="expected the cluster's token in RAY_AUTH_TOKEN, got another or none"):
        stranger.join(nodes.cluster.address, "127.0.0.1", RayPorts(0), 1, "stranger/1")
    assert not stranger.runs
    assert len(nodes.ask("status")["nodes"]) == 3


def test_a_drained_node_gets_nothing_new_and_no_request_to_its_model_fails(nodes: Nodes) -> None:
    from opbox_protocol.errors import NotFoundError

    with pytest.raises(NotFoundError, match="node 'z': expected a node of the cluster"):
        nodes.ask("drain", "z")
    with nodes.gateway() as gateway:
        load = Load(gateway)
        try:
            load.more(50)
            nodes.ask("drain", "b")
            nodes.until_state("b", "drained")
            load.more(50)
        finally:
            load.end()
    assert load.cut == 0
    assert {nodes.place(number, nbytes=1 << 20).node for number in range(300, 308)} == {"a", "c"}
    for number in range(300, 308):
        nodes.ask("cancel", f"{number:032x}")


def test_the_death_of_a_node_is_noticed(nodes: Nodes) -> None:
    """Last, as the node stays dead."""
    row = nodes.status("c")
    session = opened(row["url"])
    until(lambda: nodes.ask("where", session["id"]) == row["url"], "the controller knows the session")
    nodes.kill_node("c")
    gone = until(lambda: not isinstance(answer := nodes.ask("where", session["id"]), str) and answer, "it is lost")
    assert gone.status == 410
    assert "node c" in gone.reason
    assert nodes.ask("directory", -1).nodes["c"].state == "lost"
    assert nodes.placed(400).node == "a"
