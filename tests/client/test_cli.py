"""The `opbox` command."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptyprocess import PtyProcess

import opbox as mx
from opbox import connection
from opbox.cli import commands, main
from opbox_ops.cpu.description import cpu_description
from opbox_protocol.transport import Reply
from tests.contract.live import TOKENS, Live


def printed(*words: str) -> Any:
    """What a command prints with --json."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main([*words, "--json"]) == 0
    return json.loads(text.getvalue())


@pytest.fixture
def file(tmp_path: Path) -> str:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="f")
    mx.sym.BatchNorm(net, name="bn").save(tmp_path / "net-symbol.json")
    return str(tmp_path / "net-symbol.json")


@pytest.mark.usefixtures("engine")
def test_infer_shape(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer-shape", file, "data=2,5"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for expected in ("f_weight (3, 5) argument", "bn_output (2, 3) output", "bn_moving_mean (3,) state"):
        assert expected in lines
    assert main(["infer-shape", file]) == 1
    shown = capsys.readouterr()
    assert "(3, ?)" in shown.out
    assert "leave some unknown" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data"], "expected name=1,3,224,224, got 'data'"),
        (["data=2,x"], "shape of data: expected whole numbers"),
        (["dta=2,3"], "keyword argument 'dta' not found: expected one of data, f_weight"),
        (["data=2,5", "f_weight=3,6"], "weight: expected (3, 5), got (3, 6)"),
    ],
)
@pytest.mark.usefixtures("embedded")
def test_what_infer_shape_refuses(
    arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["infer-shape", file, *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer-shape", "/nowhere.json"]) == 1
    assert capsys.readouterr().err.startswith("opbox: /nowhere.json: expected a file to read, got none: ")


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    assert "FullyConnected" in capsys.readouterr().out
    assert main(["ops", "flatten"]) == 0
    assert "Flatten (also flatten)" in capsys.readouterr().out
    assert main(["ops", "Convolutoin"]) == 1
    assert "did you mean Convolution" in capsys.readouterr().err


@pytest.mark.usefixtures("engine")
def test_status(capsys: pytest.CaptureFixture[str]) -> None:
    mx.nd.ones((2,)).asnumpy()
    assert main(["status"]) == 0
    printed = capsys.readouterr().out
    assert "1 session of yours" in printed
    assert f"\ncpu: {cpu_description().line}\n" in printed


def test_a_reader_that_has_seen_enough() -> None:
    command = f"{sys.executable} -m opbox.cli ops | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["plot", "--hlp"], ["frobnicate"]])
def test_what_asks_nothing_of_opbox_loads_nothing(words: list[str]) -> None:
    code = (
        f"import sys\nfrom opbox.cli import main\nmain({words!r})\n"
        "print('importlib.metadata' in sys.modules)\n"
        "print(*(m for m in sys.modules if m.partition('.')[0] in ('opbox', 'numpy', 'rich', 'opbox_service')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, metadata, names = done.stdout.splitlines()
    loaded = set(names.split())
    # Only the option of a command needs that command.
    least = {"opbox", "opbox._lazy", "opbox.cli", "opbox.cli.commands", "opbox.script_errors"}
    assert words[0] == "plot" or loaded == least
    assert "rich" not in loaded
    assert metadata == str(words == ["--version"])  # the time of a fifth of --help


def test_help_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, (place, line) in commands.COMMANDS.items():
        assert f"  {name} " in shown
        assert line in shown
        if place:
            assert main([name, "--help"]) == 0
            assert f"Usage: opbox {name}" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"opbox {mx.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["statsu"], "opbox: expected a command, got 'statsu': did you mean status?"),
        (["xyzzy"], "opbox: expected a command, got 'xyzzy': see opbox --help"),
        (["plot"], "opbox plot: Missing argument 'FILE': see opbox plot --help"),
        (["status", "--live", "--json"], "opbox status: expected --live or --json, got both: see opbox status --help"),
        (["sessions", "end"], "opbox sessions end: Missing argument 'ID...': see opbox sessions end --help"),
        (["completion"], "opbox completion: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish: see"),
        (["completion", "cmd"], "opbox completion: Invalid value for '{bash|zsh|fish}': 'cmd' is not one of"),
    ],
)
def test_words_that_are_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_serve_without_the_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    assert main(["serve", "--port", "0"]) == 1
    assert capsys.readouterr().err == "opbox serve: needs opbox-service: pip install 'opbox[server]'\n"


def test_gpu_selfcheck_without_the_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "opbox_service", None)
    monkeypatch.setitem(sys.modules, "opbox_service.selfcheck.command", None)
    assert main(["gpu-selfcheck"]) == 1
    assert capsys.readouterr().err == "opbox gpu-selfcheck: needs opbox-service: pip install 'opbox[server]'\n"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpu", "opbox: gpu-selfcheck: device 'cpu': expected a GPU such as gpu or gpu:1\n"),
        ("gpu:99", "opbox: device 'gpu:99' is not available: "),
        ("tpu", "opbox: device 'tpu': expected 'cpu', 'gpu' or one with a number as 'gpu:1'\n"),
    ],
)
def test_gpu_selfcheck_of_no_gpu(device: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-selfcheck", "--device", device]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(message)
    assert shown.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_OPBOX_COMPLETE" in capsys.readouterr().out


def test_names_are_completed() -> None:
    environment = os.environ | {"_OPBOX_COMPLETE": "bash_complete", "COMP_WORDS": "opbox ops fullyc", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-m", "opbox.cli"], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["plain,FullyConnected"]


@pytest.mark.usefixtures("engine")
def test_json_of_every_command(file: str, tmp_path: Path) -> None:
    mx.nd.ones((2,)).asnumpy()
    state = printed("status")
    assert state["ready"]
    assert state["cpu"] == cpu_description().line
    assert state["kernels"] == {}
    assert len(state["sessions"]) == len(printed("sessions")["sessions"]) == 1
    assert {
        "name": "Flatten",
        "doc": next(op["doc"] for op in printed("ops")["operators"] if op["name"] == "Flatten"),
    } in (printed("ops")["operators"])
    assert printed("ops", "flatten")["name"] == "Flatten"
    shapes = {row["name"]: row["shape"] for row in printed("infer-shape", file, "data=2,5")["shapes"]}
    assert shapes["f_weight"] == [3, 5]
    assert printed("summary", file, "data=2,5")["parameters"] == 18 + 6
    assert Path(printed("plot", file, "data=2,5", "-o", str(tmp_path / "x.svg"))["file"]).exists()
    timed = printed("bench", file, "data=2,5", "--seconds", "0.05", "--train")
    assert timed["steps"] >= 3
    assert timed["samples_per_s"] > 0
    (session,) = printed("sessions")["sessions"]
    assert printed("sessions", "end", session["id"]) == {"ended": [session["id"]]}
    assert printed("sessions") == {"sessions": []}


@pytest.mark.usefixtures("engine")
def test_ending_what_is_no_session_of_yours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "end", "foo"]) == 1
    expected = "opbox: session 'foo': expected an open one of yours, got an id that is none: see opbox sessions\n"
    assert capsys.readouterr().err == expected


def test_a_session_is_ended_by_the_beginning_of_its_id(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_URL", live.url)
    monkeypatch.setenv("OPBOX_TOKEN", TOKENS["bob"])
    mx.disconnect()
    try:
        first, second = live.session("bob"), live.session("bob")
        assert printed("sessions", "end", first.id[:8], first.id) == {"ended": [first.id]}
        assert first.run({"do": "seed", "seed": 1}).status == 410
        assert second.run({"do": "seed", "seed": 1}).status == 200
        assert printed("sessions", "end", second.id[:8]) == {"ended": [second.id]}
    finally:
        mx.disconnect()


@pytest.mark.parametrize(
    ("prefix", "error"),
    [
        ("ab", "session 'ab': expected what begins one id, got what begins abc1, abc2: write more letters of it"),
        ("x", "session 'x': expected an open one of yours, got an id that is none: see opbox sessions"),
        ("", "session '': expected an open one of yours, got an id that is none: see opbox sessions"),
        ("abc11", "session 'abc11': expected an open one of yours, got an id that is none: see opbox sessions"),
        (
            "d",
            "session 'd': expected what begins one id, got what begins d1, d2, d3, d4, …: write more letters of it",
        ),
    ],
)
def test_the_beginning_of_no_or_of_several_sessions_ends_none(
    prefix: str, error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []

    class Listing:
        def call(self, method: str, path: str) -> Reply:
            if method == "DELETE":
                ended.append(path)
            ids = ["abc1", "abc2", "d1", "d2", "d3", "d4", "d5", "e1"]
            return Reply({"sessions": [{"id": name} for name in ids]}, {})

    monkeypatch.setattr(connection, "transport", Listing)
    assert main(["sessions", "end", "e1", prefix]) == 1
    assert capsys.readouterr().err == f"opbox: {error}\n"
    assert not ended


def test_an_administrator_ends_sessions_with_the_option_before_or_behind(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPBOX_URL", live.url)
    monkeypatch.setenv("OPBOX_TOKEN", TOKENS["boss"])
    mx.disconnect()
    try:
        for words in (["--all", "end"], ["end", "--all"]):
            session = live.session("bob")
            assert main(["sessions", *words, session.id]) == 0
            assert capsys.readouterr().out == f"ended {session.id}\n"
            assert session.run({"do": "seed", "seed": 1}).status == 410
        assert main(["sessions", "end", "--all", "foo"]) == 1
        assert capsys.readouterr().err.endswith("of any owner, got an id that is none: see opbox sessions --all\n")
    finally:
        mx.disconnect()


def test_status_without_a_token_says_where_it_goes(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPBOX_URL", live.url)
    monkeypatch.delenv("OPBOX_TOKEN", raising=False)
    mx.disconnect()
    try:
        assert main(["status"]) == 1
        assert capsys.readouterr().err.endswith("got none: set OPBOX_TOKEN\n")
    finally:
        mx.disconnect()


@pytest.mark.usefixtures("engine")
def test_run(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.save(tmp_path / "data.npy", data)
    assert main(["run", file, f"data={tmp_path / 'data.npy'}"]) == 1
    assert "run: expected values for f_weight, f_bias, bn_gamma, bn_beta, bn_moving_mean, …: give --params FILE" in (
        capsys.readouterr().err
    )
    weight = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    params = {"arg:f_weight": weight, "arg:f_bias": np.zeros(3), "arg:bn_gamma": np.ones(3), "arg:bn_beta": np.ones(3)}
    params |= {"aux:bn_moving_mean": np.zeros(3), "aux:bn_moving_var": np.ones(3)}
    mx.nd.save(str(tmp_path / "net.params"), {name: mx.nd.array(value) for name, value in params.items()})
    words = ["run", file, f"data={tmp_path / 'data.npy'}", "--params", str(tmp_path / "net.params")]
    (row,) = printed(*words, "-o", str(tmp_path / "out.npz"))["outputs"]
    expected = data @ weight.T / np.sqrt(1.001) + 1
    assert row["shape"] == [2, 3]
    assert row["mean"] == pytest.approx(expected.mean(), rel=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["bn_output"], expected, rtol=1e-5)
    assert main([*words[:2], "data=random:4,5", "--draw-params"]) == 0
    assert "(4, 3)" in capsys.readouterr().out


@pytest.mark.usefixtures("engine")
def test_run_of_an_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "data.npy", np.array([[-1, 2, -3]], np.float32))
    assert main(["run", "relu", f"data={tmp_path / 'data.npy'}", "-o", str(tmp_path / "out.npz")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["relu_output"], [[0, 2, 0]])
    (row,) = printed("run", "FullyConnected", "data=ones:2,3", "num_hidden=4", "--draw-params")["outputs"]
    assert row["shape"] == [2, 4]
    (row,) = printed("run", "_zeros", "shape=(2,)")["outputs"]
    assert (row["shape"], row["most"]) == ([2], 0)
    capsys.readouterr()
    for words, message in (
        (["relu"], "run: relu: expected an input, as name=random:2,3, got none: `opbox ops relu` names them"),
        (["relu", "x=ones:2"], "relu (relu): unknown input 'x': expected one of data"),
        (["rellu", "data=ones:2"], "run: expected a file or an operator, got 'rellu', which is neither: did you mean "),
        (["no-net.json"], "no-net.json: expected a file to read, got none: "),
    ):
        assert main(["run", *words]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", "data=x.txt"],
            "opbox: data: expected a .npy file, or zeros:, ones: or random: and a shape, got 'x.txt'",
        ),
        (["run", "data"], "opbox: inputs: expected name=file.npy or name=random:1,3,224,224, got 'data'"),
        (["run", "data=ones:2,5", "--device", "tpu"], "opbox: device: expected cpu, gpu or gpu:1, got 'tpu'"),
        (["run", "data=ones:2,5", "--params", "/nowhere.params"], "/nowhere.params"),
        (["plot", "-o", "net.bmp"], "opbox: plot: expected a .svg, .pdf, .png or .dot file, got 'net.bmp'"),
        (["plot", "-o", "net.svg", "dta=2,5"], "opbox: infer_shape: keyword argument 'dta' not found"),
        (["summary", "data=x"], "opbox: shape of data: expected whole numbers with commas, got 'x'"),
    ],
)
def test_values_that_are_wrong(words: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([words[0], file, *words[1:]]) == 1
    assert message in capsys.readouterr().err


def test_bench_needs_a_shape(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", file]) == 2
    assert "expected the shape of an input, as data=1,3,224,224, got none" in capsys.readouterr().err


def test_the_program_at_a_live_server(live: Live) -> None:
    def opbox(*words: str, token: str = "ann") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS[token]}
        return subprocess.run(
            [sys.executable, "-m", "opbox.cli", *words], capture_output=True, text=True, env=environment
        )

    mx.connect(live.url, TOKENS["ann"])
    try:
        array = mx.nd.ones((256, 256))
        array.wait_to_read()
        session = json.loads(opbox("sessions", "--json").stdout)["sessions"][0]["id"]
        shown = opbox("status").stdout
        assert f"at {live.url}" in shown
        assert "256.0 KiB" in shown
        assert session in opbox("sessions", "--all", token="boss").stdout
        refused = opbox("sessions", "--all")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "admin" in refused.stderr
        assert opbox("sessions", "end", "nobodys").returncode == 1
        assert opbox("sessions", "--all", "end", session, token="boss").stdout == f"ended {session}\n"
        assert json.loads(opbox("sessions", "--json").stdout) == {"sessions": []}
    finally:
        with contextlib.suppress(mx.MXNetError):
            mx.disconnect()


def test_datasets_at_a_live_server(live: Live) -> None:
    def opbox(*words: str, token: str = "bob") -> str:
        environment = os.environ | {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS[token]}
        command = (sys.executable, "-m", "opbox.cli", "datasets", *words)
        ended = subprocess.run(command, capture_output=True, text=True, env=environment)
        return ended.stdout + ended.stderr

    assert "expected a token with 'run', got one with metrics" in opbox(token="monitor")
    rows = np.arange(6, dtype=np.uint8).reshape(3, 2)
    block = hashlib.sha256(rows.tobytes()).hexdigest()
    array = {"shape": [3, 2], "dtype": "uint8", "block_rows": 3, "blocks": [block]}
    assert live.call("PUT", f"/v1/blocks/{block}", {}, {"rows": rows}, owner="bob").status == 200
    for name in ("digits", "words"):
        answer = live.call("PUT", f"/v1/datasets/{name}", {"arrays": {"data": array}, "published": True}, owner="bob")
        assert answer.status == 200
    title, head, *lines = opbox().splitlines()
    assert title.startswith("2 datasets; 6 B stored")
    assert head.lower().split() == ["dataset", "owner", "arrays", "rows", "size", "published"]
    assert [line.split()[:4] for line in lines] == [[name, "bob", "data", "3"] for name in ("digits", "words")]
    assert [row["name"] for row in json.loads(opbox("--json"))["datasets"]] == ["digits", "words"]
    assert opbox("delete", "digits", "words").splitlines() == ["deleted digits", "deleted words"]
    assert "dataset 'digits': expected one of yours" in opbox("delete", "digits")


def test_usage_at_a_live_server(live: Live) -> None:
    def opbox(*words: str, token: str = "py") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS[token]}
        return subprocess.run(
            [sys.executable, "-m", "opbox.cli", "usage", *words], capture_output=True, text=True, env=environment
        )

    before = live.json("GET", "/v1/usage", owner="py").header
    session = live.session("py")
    assert session.run({"do": "zeros", "ids": [1], "shape": [1 << 20], "dtype": "float32"}).status == 200
    mine = json.loads(opbox("--json").stdout)
    assert (mine["owner"], mine["now"]["sessions"]) == ("py", before["now"]["sessions"] + 1)
    assert mine["quotas"] == before["quotas"]
    counts = [sum(day["sessions"] for day in answer["days"]) for answer in (before, mine)]
    assert counts[1] == counts[0] + 1

    present, head, *rows = opbox("--days", "31").stdout.splitlines()
    assert present.startswith("py: ")
    assert f"{mine['now']['sessions']} of {mine['quotas']['sessions']} sessions, 4.0 MiB" in present
    assert head.lower().split()[:3] == ["day", "worker", "time"]
    days = [row.split()[0] for row in rows]
    assert days[-len(mine["days"]) :] == [day["day"] for day in mine["days"]]  # and a new one, past midnight

    shown = opbox("--all", token="boss").stdout.splitlines()
    assert shown[0].split()[1] in ("owner", "owners")
    assert shown[1].lower().split()[:2] == ["owner", "day"]
    assert any(row.split()[:2] == ["py", mine["days"][0]["day"]] for row in shown)
    listed = json.loads(opbox("--all", "--json", token="boss").stdout)["owners"]
    assert next(owner["quotas"] for owner in listed if owner["owner"] == "py") == mine["quotas"]
    refused = opbox("--all")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "admin" in refused.stderr
    assert session.delete().status == 200


def test_a_terminal_gets_a_table_that_follows(live: Live) -> None:
    environment = os.environ | {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS["bob"], "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "opbox.cli", "status", "--live", "--interval", "0.1"]
    # Where the tests themselves run in the background, SIGINT is ignored, and would be by the program.
    process = PtyProcess.spawn(
        command, env=environment, dimensions=(30, 140), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    shown = ""
    try:
        while shown.count("Ctrl-C ends this") < 3:
            shown += process.read().decode()
        process.sendintr()
        with contextlib.suppress(EOFError):
            while True:
                shown += process.read().decode()
        assert process.wait() == 130
    finally:
        process.terminate(force=True)
    assert "0 sessions of yours" in shown
    assert "Traceback" not in shown
