"""`opbox serve` as a program: what it says, how it stops, what it refuses at its start, what it does when idle."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from opbox_ops.backend.gpu_description import gpu_description
from opbox_ops.cpu.description import cpu_description
from opbox_service.settings import Settings
from opbox_service.worker.walls import walls_of
from tests.contract.live import SLOW, Live
from tests.contract.test_access import wait_for
from tests.machine import needs_onednn

X = np.arange(300_000, dtype=np.float32)
SLOWER = json.loads(json.dumps(SLOW))
SLOWER["nodes"][1]["attrs"] = {"seconds": "30"}


def serve(*options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `opbox serve` to its end."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")} | settings
    command = [sys.executable, "-m", "opbox_service.serve", "--port", "0", *options]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def log(server: Live) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(server.log.name).read_text().splitlines() if line.startswith("{")]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_it_says_that_it_starts_and_that_it_stops(start: Callable[..., Live], isolation: str) -> None:
    server = start(isolation)
    place = "this process" if isolation == "none" else "1 worker process"
    sentence = f"starting in {place}, on cpu: operators are loaded, which takes a few seconds"
    assert log(server)[0]["event"] == sentence
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
    text = Path(server.log.name).read_text()
    assert "Traceback" not in text
    gpu = gpu_description().line
    walls = walls_of(Settings.model_construct())
    events = [str(entry["event"]) for entry in log(server)[1:]]
    # What others have left in the machine's temporary folder is told, too.
    assert [event for event in events if not event.startswith("entries of the temporary folder")] == [
        *([walls.line, *walls.missing] if isolation == "process" else []),
        f"the CPU computes by {cpu_description().line}",
        *([f"GPU: {gpu}"] if gpu else []),
        "stopping, waiting for 0 calls, 20 s at most (Ctrl-C again stops at once)",
    ]


@needs_onednn
def test_it_warns_of_what_is_missing(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_ONEDNN="/nowhere/libdnnl.so.3")
    (warning,) = [entry for entry in log(server) if entry["level"] == "warning"]
    assert "oneDNN, which is faster, is missing: pip install " in str(warning["event"])
    assert warning["event"] == f"the CPU computes by {server.json('GET', '/v2').header['cpu']}"


MISMATCHED = """
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuInit(unsigned flags) { return 803; }
int cuDeviceGetCount(int *count) { return 3; }
"""
"""A driver's library that is not of the version of the driver in the kernel."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_it_says_why_a_gpu_cannot_be_used(start: Callable[..., Live], tmp_path: Path) -> None:
    command = ["cc", "-shared", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=MISMATCHED, text=True, check=True)
    server = start("none", LD_LIBRARY_PATH=str(tmp_path))
    sentence = str(server.json("GET", "/v2").header["gpu"])
    assert sentence.startswith(
        "not usable: the NVIDIA driver in the kernel and its library (libcuda.so.1) have different"
    )
    assert f"GPU: {sentence}" in [entry["event"] for entry in log(server)]


def test_on_a_terminal_these_are_plain_lines() -> None:
    ours, theirs = pty.openpty()
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    command = [sys.executable, "-m", "opbox_service.serve", "--port", "0", "--isolation", "none"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"opbox serving on http://")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        text = os.read(ours, 10_000).decode()
    os.close(ours)
    assert re.fullmatch(
        r"opbox serve: starting in this process, on cpu: .*\r\n"
        r"opbox serve: the CPU computes by .*\r\n"
        r"(opbox serve: GPU: .*\r\n)?"
        r"opbox serve: stopping, waiting for 0 calls, 20 s at most \(Ctrl-C again stops at once\)\r\n",
        text,
    ), text


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_ctrl_c_waits_for_calls_and_the_second_does_not(start: Callable[..., Live], isolation: str) -> None:
    server = start(isolation)
    workers = server.workers()

    def call() -> None:
        with pytest.raises(httpx.TransportError):
            server.call("POST", "/v1/forward", {"graph": SLOWER}, {"x": X})

    running = threading.Thread(target=call)
    running.start()
    wait_for(lambda: server.metric("opbox_requests_in_flight") > 1)
    server.process.send_signal(signal.SIGINT)
    # The one for the metrics may not have ended either.
    wait_for(lambda: re.search(r"waiting for [12] calls?, 20 s at most", Path(server.log.name).read_text()))
    time.sleep(0.3)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(20) == 130  # the call would have gone on for half a minute
    assert not any(Path(f"/proc/{pid}/stat").exists() and "Z" not in state(pid) for pid in workers)
    running.join(10)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_device_that_is_not_there_is_refused_at_the_start(isolation: str) -> None:
    for option in ("--device", "--devices"):
        ended = serve("--isolation", isolation, option, "gpu:77")
        assert ended.returncode == 1
        assert ended.stderr.count("is not available") == 1
        assert ended.stderr.splitlines()[-1].startswith("opbox serve: device 'gpu:77' is not available: ")
        assert "Traceback" not in ended.stderr
    unknown = serve("--isolation", isolation, "--device", "tpu")
    assert (
        unknown.stderr.splitlines()[-1]
        == "opbox serve: device 'tpu': expected 'cpu', 'gpu' or one with a number as 'gpu:1'"
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"OPBOX_MAX_SESION_BYTES": "1"},
            "OPBOX_MAX_SESION_BYTES: expected a setting of opbox, got an unknown name: did you mean "
            "OPBOX_MAX_SESSION_BYTES?",
        ),
        (
            {"OPBOX_COLOUR": "red"},
            "OPBOX_COLOUR: expected a setting of opbox, got an unknown name: see opbox serve --help, and unset it",
        ),
        (
            {"OPBOX_CORS_ORIGINS": '["example.org"]'},
            "cors_origins: expected origins such as https://example.org, without a path, or *, got ['example.org']",
        ),
        *(
            (
                {"OPBOX_GROUP_PORTS": ports},
                "group_ports: expected the first and the last port, from 1 to 65535, such as 20000-20099, got "
                f"'{ports}'",
            )
            for ports in ("20000", "20099-20000", "0-9", "65000-70000", "http-https", "1-2-3")
        ),
        (
            {"OPBOX_GROUP_NCCL": "maybe"},
            "group_nccl: expected a valid boolean, unable to interpret input, got 'maybe'",
        ),
        (
            {"OPBOX_TOKEN_FILE": "/nowhere/token"},
            "/nowhere/token: expected a file of tokens, got none that can be read (No such file or directory)",
        ),
    ],
)
def test_wrong_settings_are_refused_at_the_start(settings: dict[str, str], sentence: str) -> None:
    ended = serve(**settings)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, f"opbox serve: {sentence}")


def switches(pid: int) -> int:
    """How often a process has gone to sleep so far."""
    status = (Path(task, "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)[0]) for text in status)


def test_an_idle_server_sleeps(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_CODE_SPARES="1", OPBOX_TOKENS="", OPBOX_TOKEN="a-token-with-every-scope")
    token = {"Authorization": "Bearer a-token-with-every-scope"}
    # A session with a process of its own, which is watched while it lives, and is not when it has gone.
    id = httpx.post(f"{server.url}/v1/sessions", headers=token, json={"code": True}, timeout=60).json()["id"]
    assert httpx.delete(f"{server.url}/v1/sessions/{id}", headers=token, timeout=60).status_code == 200
    wait_for(lambda: len(server.code_workers()) == 1)

    def asleep() -> bool:
        processes = [server.process.pid, *server.workers(), *server.code_workers()]
        before = {pid: switches(pid) for pid in processes}
        time.sleep(4)
        # The API process once a second, and each of the others; ten and more times as often where it looks for strays.
        return all(switches(pid) - count <= 16 for pid, count in before.items())

    wait_for(asleep, 60)  # when the session's process has been cleaned up, which takes a busy machine a while
