"""Sessions that bring code: what their code may do, how it ends, and that nobody else notices."""

from __future__ import annotations

import contextlib
import glob
import inspect
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
import opbox_ops
import opbox_protocol
import opbox_service
from opbox import connection
from opbox.http import HttpTransport
from opbox.operator.definition import Definition
from opbox_service.worker import landlock
from tests.contract import mischief
from tests.contract.live import SCOPES, TOKENS, Got, Live, Session, symbol, var
from tests.contract.test_workers import shared_memory, wait_for

X = np.arange(6, dtype=np.float32)
SECRET = "a-secret-of-the-tests"
OWN_USER = os.geteuid() == 0
KEPT_OUT = pytest.mark.skipif(
    not OWN_USER and not landlock.abi(), reason="needs root, or a kernel with Landlock, to keep files apart"
)


def settings(**further: str) -> dict[str, str]:
    every = ["run", "upload-python", "upload-cuda"]
    tokens = [{"name": name, "token": f"{name}-secret-1", "scopes": every} for name in ("py", "cuda", "bob")]
    tokens += [{"name": name, "token": TOKENS[name], "scopes": SCOPES[name]} for name in ("ann", "monitor")]
    return {
        "OPBOX_TOKENS": json.dumps(tokens),
        "OPBOX_CODE_SPARES": "1",
        "OPBOX_CODE_DEADLINE_S": "3",
        "OPBOX_CODE_MEMORY_BYTES": str(1 << 30),
        "OPBOX_CODE_FILE_BYTES": str(64 << 20),
        "SECRET_OF_THE_TESTS": SECRET,
        **further,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for all: whatever a test does to its session, the next test's is well."""
    live = Live("process", tmp_path_factory.mktemp("isolation"), **settings())
    yield live
    workers, folders = live.code_workers(), own_folders(live)
    assert live.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not [folder for folder in folders if os.path.exists(folder)]


def own_folders(server: Live) -> list[str]:
    return glob.glob(f"/tmp/opbox-code-{server.process.pid}-*")


def definition(cls: type, op_type: str) -> tuple[str, dict[str, Any]]:
    """The hash of an operator's source, and the command that brings it."""
    bundle = Definition("Custom", op_type, cls).source()
    return bundle.sha256, {
        "do": "define",
        "op": "Custom",
        "op_type": op_type,
        "sha256": bundle.sha256,
        "bundle": bundle.json(),
    }


def step(what: str, value: object = "") -> list[Mapping[str, Any]]:
    """Commands that bring the operator and run it once."""
    code, define = definition(mischief.MischiefProp, "mischief")
    attrs = {"op_type": "mischief", "__code__": code, "what": what, "value": str(value)}
    return [
        {"do": "put", "id": 1, "tensor": "x"},
        define,
        {"do": "invoke", "op": "Custom", "attrs": attrs, "inputs": [1], "outputs": [2]},
        {"do": "fetch", "id": 2, "as": "y"},
    ]


def run(server: Live, what: str, value: object = "", owner: str = "py") -> tuple[Session, Got]:
    session = server.session(owner)
    return session, session.run(*step(what, value), x=X)


def tells_the_line(answer: Got, what: str) -> bool:
    """Whether the error names the line, in the traceback too, where a mischief's method went wrong."""
    text, first = inspect.getsourcelines(getattr(mischief.Mischief, what))
    frames = re.findall(r'File "mischief.py", line (\d+), in (\w+)', answer.header["detail"]["traceback"])
    line, name = frames[-1]
    within = first < int(line) < first + len(text) and f"def {name}(" in "".join(text)
    return within and f"at mischief.py:{line} in {name}" in answer.error


def is_well(server: Live, owner: str = "py") -> None:
    """A new session works at once."""
    session, answer = run(server, "nothing", owner=owner)
    assert answer.status == 200, answer.header
    np.testing.assert_array_equal(answer.tensors["y"], X + 1)
    assert session.delete().status == 200


# -- code that ends its process -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "status", "type", "words", "cause"),
    [
        ("segfault", 422, "UserCodeError", "killed by SIGSEGV) at mischief.py:", "SIGSEGV"),
        ("segfault_in_a_thread", 422, "UserCodeError", "killed by SIGSEGV) at mischief.py:", "SIGSEGV"),
        ("native_stack", 422, "UserCodeError", "killed by SIGSEGV)", "SIGSEGV"),
        ("leave", 422, "UserCodeError", "exit status 3", "exit"),
        ("leave_well", 422, "UserCodeError", "exit status 0", "exit"),
        ("loop", 504, "DeadlineError", "took longer than 3 s for one command at mischief.py:", "deadline"),
        ("loop_with_the_lock", 504, "DeadlineError", "took longer than 3 s", "deadline"),
        ("sleep", 504, "DeadlineError", "took longer than 3 s", "deadline"),
        ("connection", 422, "UserCodeError", "wrote on the connection", "protocol"),
    ],
)
def test_code_that_ends_its_process(server: Live, what: str, status: int, type: str, words: str, cause: str) -> None:
    deaths = server.metric(f'opbox_code_deaths_total{{cause="{cause}"}}')
    bystander = server.session("bob")
    assert bystander.run(*step("nothing"), x=X).status == 200
    session, answer = run(server, what)
    assert (answer.status, answer.header["type"]) == (status, type), answer.header
    assert words in answer.error
    assert "make a new session" in answer.error
    if "mischief.py" in words:
        assert tells_the_line(answer, what), answer.header
    again = session.run({"do": "describe", "id": 1})
    assert (again.status, again.header["type"]) == (410, "GoneError")
    assert words in again.error
    assert session.delete().status == 410
    assert server.call("GET", session.path, owner="bob").status == 404
    assert server.metric(f'opbox_code_deaths_total{{cause="{cause}"}}') == deaths + 1
    is_well(server)
    untouched = bystander.run({"do": "fetch", "id": 2, "as": "y"})
    np.testing.assert_array_equal(untouched.tensors["y"], X + 1)
    bystander.delete()


@pytest.mark.parametrize("what", ["segfault", "segfault_in_a_thread", "loop"])
def test_the_line_is_told_where_the_packages_are_out_of_reach_of_the_code(tmp_path: Path, what: str) -> None:
    """As in a clone below root's home: the process opens them by descriptors, and frames carry those names."""
    for package in (opbox_protocol, mx, opbox_ops, opbox_service):
        (folder,) = package.__path__
        shutil.copytree(folder, tmp_path / "opbox" / package.__name__, ignore=shutil.ignore_patterns("__pycache__"))
    tmp_path.chmod(0o700)
    server = Live("process", tmp_path, **settings(PYTHONPATH=str(tmp_path / "opbox")))
    try:
        _, answer = run(server, what)
        assert tells_the_line(answer, what), answer.header
    finally:
        assert server.stop() == 0


def test_a_batch_that_nobody_waited_for_is_told_of_next(server: Live) -> None:
    session = server.session("py")
    assert session.run(*step("leave"), wait=False, x=X).status == 202
    wait_for(lambda: session.run({"do": "describe", "id": 1}).status != 200)
    answer = session.run({"do": "describe", "id": 1})
    assert answer.status == 410
    assert "exit status 3" in answer.error


def test_memory_that_others_share_is_counted(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_DEADLINE_S="120"))
    session, answer = run(server, "shared_memory")
    assert (answer.status, answer.header["type"]) == (422, "UserCodeError")
    assert "held more than 1073741824 bytes" in answer.error
    assert session.run({"do": "describe", "id": 1}).status == 410


# -- code that fails, in a process that goes on ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("memory", "Unable to allocate"),
        ("fork_bomb", "Resource temporarily unavailable"),
        ("threads", "can't start new thread"),
        ("stack", "maximum recursion depth"),
        ("files", "Too many open files"),
        ("large_file", "File too large"),
        ("importing", "No module named 'no_such_package'"),
        ("raising", "index 7 is out of bounds"),
        ("write_to_input", "writes to an input"),
    ],
)
def test_code_that_fails(server: Live, what: str, words: str) -> None:
    session, answer = run(server, what)
    assert answer.status in (422, 429), answer.header
    assert words in answer.error or words in answer.header["detail"].get("traceback", "")
    if answer.status == 422:
        assert f"in {what}" in answer.header["detail"]["traceback"]
        assert "mischief.py" in answer.header["detail"]["traceback"]
    untouched = session.run({"do": "fetch", "id": 1, "as": "x"})
    np.testing.assert_array_equal(untouched.tensors["x"], X)
    assert session.delete().status == 200
    is_well(server)


def test_what_it_forks_ends_with_its_session(server: Live) -> None:
    session, answer = run(server, "fork_and_stay")
    assert answer.status == 200
    user = owner_of(server.code_workers()[0]) if OWN_USER else None
    assert user is None or user != 0
    before = processes_of_code(server)
    assert session.delete().status == 200
    wait_for(lambda: not (processes_of_code(server) & before) - set(server.code_workers()))


def owner_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Uid:")).split()[1])


def processes_of_code(server: Live) -> set[int]:
    """All processes that run under a user of the server's code processes."""
    if not OWN_USER:
        return set()
    users = {owner_of(pid) for pid in server.code_workers()}
    ids = set()
    for folder in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            if owner_of(int(folder[6:])) in users:
                ids.add(int(folder[6:]))
    return ids


# -- what it sees ---------------------------------------------------------------------------------------------------


def report(server: Live, what: str, value: object = "") -> str:
    """What the operator raised."""
    session, answer = run(server, what, value)
    assert answer.status == 422, answer.header
    session.delete()
    return answer.error


def test_the_environment_has_no_secrets(server: Live) -> None:
    text = report(server, "environment")
    assert "PATH=" in text
    assert SECRET not in text
    assert "OPBOX_" not in text
    assert "secret" not in text


def test_no_compiled_formulas_run_beside_a_sessions_code(server: Live) -> None:
    assert "ValueError: off" in report(server, "kernels")


@KEPT_OUT
def test_what_is_not_its_own_is_out_of_reach(server: Live, tmp_path: Path) -> None:
    other = server.session("bob")
    shown = other.run(*step("folder"), x=X)
    folder = shown.error.partition("folder ")[2].split()[0]
    assert folder in own_folders(server)
    mine = Path(folder, "mine.txt")
    assert mine.read_text() == "private"
    for what, value in (
        ("read", mine),
        ("read", f"/proc/{server.process.pid}/environ"),
        ("environment_of", server.process.pid),
        ("environment_of", other_worker(server)),
        ("write", Path(folder, "yours.txt")),
        ("write", tmp_path / "new.txt"),
        ("write", mischief.__file__),
        ("write", "/dev/shm/opbox-test"),
    ):
        assert "Permission denied" in report(server, what, value), (what, value)
    assert other.delete().status == 200
    wait_for(lambda: not os.path.exists(folder))


def other_worker(server: Live) -> int:
    return server.workers()[0]


@pytest.mark.skipif(not OWN_USER and landlock.abi() < 6, reason="needs root, or a kernel that keeps signals in")
def test_it_cannot_signal_the_server(server: Live) -> None:
    for pid in (server.process.pid, other_worker(server)):
        assert "Operation not permitted" in report(server, "kill", pid)


@pytest.mark.skipif(not OWN_USER and landlock.abi() < 4, reason="needs root, or a kernel that keeps TCP in")
def test_it_has_no_network(server: Live) -> None:
    text = report(server, "connect", server.url.removeprefix("http://"))
    assert any(words in text for words in ("Permission denied", "Network is unreachable", "Connection refused"))


def test_its_descriptors_are_its_own(server: Live) -> None:
    text = report(server, "descriptors")
    assert str(server.folder) not in text.replace(server.log.name, "")
    assert text.count("socket:") == 1


@pytest.mark.skipif(not OWN_USER, reason="needs root")
def test_each_process_has_a_user_of_its_own(server: Live) -> None:
    sessions = [server.session("py") for _ in range(2)]
    # A spare that is only starting is still root; what runs code has taken on its user before it reads any.
    wait_for(lambda: all(owner_of(pid) != 0 for pid in server.code_workers()))
    users = [owner_of(pid) for pid in server.code_workers()]
    assert len(users) >= len(sessions)
    assert len(set(users)) == len(users)
    for session in sessions:
        session.delete()


# -- who gets one ---------------------------------------------------------------------------------------------------


def test_only_tokens_that_may_upload_get_a_process(server: Live) -> None:
    count = server.metric("opbox_code_workers")
    plain, chosen = server.session("ann"), server.session("py", code=False)
    assert server.metric("opbox_code_workers") == count
    own = server.session("py", code=True)
    assert server.metric("opbox_code_workers") == count + 1
    refused = server.call("POST", "/v1/sessions", {"code": True}, owner="ann")
    assert (refused.status, refused.header["type"]) == (403, "ForbiddenError")
    assert server.call("POST", "/v1/sessions", {"code": 1}, owner="py").status == 400
    told_so = chosen.run(*step("nothing"), x=X)
    assert (told_so.status, told_so.header["type"]) == (409, "ConflictError")
    assert '{"code": true}' in told_so.error
    assert plain.run(*step("nothing"), x=X).status == 403
    listed = server.call("GET", "/v1/sessions", owner="py").header["sessions"]
    assert {chosen.id, own.id} <= {row["id"] for row in listed}
    for session in (plain, chosen, own):
        assert session.delete().status == 200
    assert own.run({"do": "describe", "id": 1}).status == 410


def test_their_number_is_limited(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_SESSIONS="2", OPBOX_CODE_SPARES="0"))
    sessions = [server.session("py"), server.session("bob")]
    refused = server.call("POST", "/v1/sessions", owner="py")
    assert (refused.status, refused.header["type"]) == (429, "QuotaError")
    assert '{"code": false}' in refused.error
    assert sessions[0].delete().status == 200
    assert server.session("py").run(*step("nothing"), x=X).status == 200


def test_a_session_that_loops_can_be_listed_and_deleted(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_DEADLINE_S="120"))
    session = server.session("py")
    running = threading.Thread(target=session.run, args=step("loop_with_the_lock"), kwargs={"x": X})
    running.start()
    time.sleep(0.5)
    listed = server.call("GET", "/v1/sessions", owner="py").header["sessions"]
    assert session.id in {row["id"] for row in listed}
    assert server.call("DELETE", session.path, owner="py").status == 200
    running.join(60)
    assert not running.is_alive(), "it goes on until its deadline"
    assert "deleted" in session.run({"do": "describe", "id": 1}).error


def test_a_session_expires_with_its_process(server: Live) -> None:
    count = server.metric("opbox_code_workers")
    session = server.session("py", ttl_s=0.5)
    wait_for(lambda: server.metric("opbox_code_workers") <= count)
    answer = session.run({"do": "describe", "id": 1})
    assert answer.status == 410
    assert "expired" in answer.error


def test_one_name_two_codes(server: Live) -> None:
    answers = []
    for cls in (mischief.DoublerProp, mischief.TriplerProp):
        code, define = definition(cls, "of_one_name")
        session = server.session("py")
        invoke = {
            "do": "invoke",
            "op": "Custom",
            "attrs": {"op_type": "of_one_name", "__code__": code},
            "inputs": [1],
            "outputs": [2],
        }
        answer = session.run(
            {"do": "put", "id": 1, "tensor": "x"}, define, invoke, {"do": "fetch", "id": 2, "as": "y"}, x=X
        )
        assert answer.status == 200, answer.header
        answers.append(answer.tensors["y"] / np.maximum(X, 1))
        session.delete()
    assert [float(answer[1]) for answer in answers] == [2.0, 3.0]


# -- nobody else notices --------------------------------------------------------------------------------------------

NET = symbol(
    var("x"),
    var("w"),
    var("b"),
    ("FullyConnected", "fc", {"num_hidden": "16"}, [0, 1, 2]),
    ("Activation", "act", {"act_type": "tanh"}, [3]),
    ("sum", "total", {}, [4]),
)


def train(session: Session, steps: int, until: Callable[[], bool] = lambda: True) -> list[np.ndarray]:
    """Plain gradient descent; the weights after each step, as many as it takes."""
    rng = np.random.default_rng(7)
    arrays = {"x": rng.normal(size=(32, 24)), "w": rng.normal(size=(16, 24)), "b": np.zeros(16)}
    single = {name: value.astype(np.float32) for name, value in arrays.items()}
    zeros = {f"g{name}": np.zeros_like(value) for name, value in single.items()}
    ids = {name: i for i, name in enumerate((*single, *zeros), 1)}
    puts = [{"do": "put", "id": id, "tensor": name} for name, id in ids.items()]
    bind = {
        "do": "bind",
        "id": 20,
        "graph": NET,
        "args": {name: ids[name] for name in single},
        "grads": {name: ids[f"g{name}"] for name in ("w", "b")},
        "grad_req": {"x": "null"},
        "outputs": [21],
    }
    answer = session.run(
        *puts, bind, {"do": "put", "id": 30, "tensor": "one"}, one=np.ones(1, np.float32), **single, **zeros
    )
    assert answer.status == 200, answer.header
    calls = [{"inputs": [ids["w"], ids["gw"]]}, {"inputs": [ids["b"], ids["gb"]]}]
    weights = []
    while len(weights) < steps or not until():
        answer = session.run(
            {"do": "forward", "executor": 20, "is_train": True},
            {"do": "backward", "executor": 20, "head_grads": [30]},
            {"do": "update", "op": "sgd_update", "attrs": {"lr": "0.01"}, "calls": calls},
            {"do": "fetch", "id": ids["w"], "as": "w"},
        )
        assert answer.status == 200, answer.header
        weights.append(answer.tensors["w"].copy())
    return weights


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_another_session_trains_on_bit_for_bit(server: Live, owner: str) -> None:
    """In a worker that sessions share (ann), and in one of its own (bob)."""
    undisturbed = train(server.session(owner), 20)
    done = threading.Event()
    weights: list[list[np.ndarray]] = []
    training = threading.Thread(target=lambda: weights.append(train(server.session(owner), 20, done.is_set)))
    training.start()
    try:
        for what in ("segfault", "leave", "memory", "fork_bomb", "connection", "loop", "raising"):
            session, answer = run(server, what)
            assert answer.status in (422, 429, 504)
            server.call("DELETE", session.path, owner="py")
    finally:
        done.set()
        training.join(60)
    (disturbed,) = weights
    for before, after in zip(undisturbed, disturbed, strict=False):
        np.testing.assert_array_equal(before, after)
    assert len(disturbed) >= len(undisturbed)
    assert server.metric("opbox_worker_restarts_total") == 0


def test_nothing_stays_behind(server: Live) -> None:
    before = set(os.listdir("/dev/shm"))
    big = np.arange(300_000, dtype=np.float32)
    for what in ("segfault", "leave", "folder", "fork_and_stay"):
        session = server.session("py")
        sent = session.run({"do": "put", "id": 9, "tensor": "x"}, {"do": "fetch", "id": 9, "as": "x"}, x=big)
        np.testing.assert_array_equal(sent.tensors["x"], big)
        session.run(*step(what), x=X)
        server.call("DELETE", session.path, owner="py")
    left = server.call("GET", "/v1/sessions", owner="py").header["sessions"]
    for row in left:
        server.call("DELETE", f"/v1/sessions/{row['id']}", owner="py")
    expected = 1 + int(server.metric("opbox_code_workers"))
    wait_for(lambda: len(own_folders(server)) <= expected)
    wait_for(lambda: len(server.code_workers()) <= expected)
    assert {name for name in os.listdir("/dev/shm") if "opbox" in name} <= before
    # A page and a file for the stack for each process that is there.
    wait_for(lambda: len(shared_memory(server.process.pid)) <= 2 * expected)


def test_a_killed_server_takes_them_along_and_the_next_one_its_folders(start: Callable[..., Live]) -> None:
    server = start("process", **settings())
    run(server, "folder")
    workers, folders = server.code_workers(), own_folders(server)
    assert folders
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    following = start("process", **settings())
    following.session("py")
    assert not [folder for folder in folders if os.path.exists(folder)]


# -- through the client ---------------------------------------------------------------------------------------------


def test_the_client_goes_on_in_a_new_session(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(HttpTransport(server.url, "py-secret-1"))
    try:
        data = mx.sym.Variable("data")

        def output(what: str) -> np.ndarray:
            net = mx.sym.Custom(data, op_type="mischief", what=what, name="mine")
            executor = net.simple_bind(mx.cpu(), data=(6,))
            return executor.forward(data=mx.nd.array(X))[0].asnumpy()

        np.testing.assert_array_equal(output("nothing"), X + 1)
        lost = mx.nd.ones((2,))
        with pytest.raises(mx.base.MXNetError, match=r"SIGSEGV.*mischief.py:\d+ in segfault"):
            output("segfault")
        with pytest.raises(mx.base.MXNetError, match="SIGSEGV"):
            lost.asnumpy()
        np.testing.assert_array_equal(output("nothing"), X + 1)
    finally:
        connection.use(None)
