"""`opbox serve` at a terminal: it says at once that it starts, and its log is for people."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

TOKEN = "a-token-of-forty-characters-and-a-few-more"
OPBOX = Path(sys.executable).with_name("opbox")


def output(tmp_path: Path, **settings: str) -> list[str]:
    """What a server prints to a terminal that answers one request with an error, line by line."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    env |= {"OPBOX_TOKEN": TOKEN, "OPBOX_RUNTIME_DIR": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200", **settings}
    command = [str(OPBOX), "serve", "--port", "0", "--isolation", "none"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.get(f"{url}/v1/ops/Nothing", headers=headers).status_code == 404
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        text = os.read(ours, 100_000).decode()
    os.close(ours)
    return text.splitlines()


def test_the_log_is_for_people(tmp_path: Path) -> None:
    first, *lines = output(tmp_path)
    assert first == "opbox serve: starting"
    (request,) = (line for line in lines if "Nothing" in line)
    assert re.match(r"\d\d:\d\d:\d\d \[info\s*\] request ", request), request
    assert "status=404" in request
    assert "path=/v1/ops/Nothing" in request
    assert not [line for line in lines if line.startswith("{")]


def test_it_may_be_json_at_a_terminal_too(tmp_path: Path) -> None:
    (request,) = (line for line in output(tmp_path, OPBOX_LOG_FORMAT="json") if "Nothing" in line)
    assert json.loads(request)["status"] == 404


def test_it_may_be_for_people_elsewhere(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    env |= {"OPBOX_LOG_FORMAT": "text", "OPBOX_RUNTIME_DIR": str(tmp_path), "OPBOX_TOKEN": TOKEN}
    command = [sys.executable, "-m", "opbox_service.serve", "--port", "0", "--isolation", "none"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=60)
    assert re.match(r"\d\d:\d\d:\d\d \[info\s*\] ", text), text
    assert "\x1b" not in text
