"""A server, a browser, and a program that trains on the server, shared by the tests of the page."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.live import TOKENS, Live
from tests.models.conftest import loaded
from tests.page.browser import chromium, missing
from tests.page.served import save_models
from tests.page.user import User

TRAINING = """
import numpy as np
import opbox as mx
from lenet_demo import lenet

np.random.seed(0)
x = np.random.rand(200, 1, 8, 8).astype("float32")
y = np.random.randint(0, 10, 200).astype("float32")
mod = mx.mod.Module(lenet(mx, 8))
train, held_out = mx.io.NDArrayIter(x, y, 20), mx.io.NDArrayIter(x, y, 20)
mod.fit(train, held_out, eval_metric=["acc", "ce"], num_epoch=100000, initializer=mx.init.Xavier())
"""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass
class Training:
    """A program that trains, and its session."""

    program: subprocess.Popen[str]
    session: str
    owner: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of models that the server serves."""
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


@pytest.fixture(scope="session")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("process", tmp_path_factory.mktemp("server"), OPBOX_MODELS=str(models))
    loaded(live)
    yield live
    assert live.stop() == 0


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The browser. Without one the tests fail and say what to do: who asks for them is to know that none has run."""
    reason = missing()
    if reason is not None:
        pytest.fail(reason, pytrace=False)
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def user(server: Live, driver: Any) -> Iterator[User]:
    """Somebody at the browser, who has not signed in; the log is empty."""
    for log in ("browser", "performance"):  # what was asked for another test
        driver.get_log(log)
    one = User(driver, server)
    yield one
    one.sign_out()


@pytest.fixture
def train(server: Live) -> Iterator[Callable[[str], Training]]:
    """Start a program that trains LeNet for an owner until it is ended; its session too."""
    runs: list[Training] = []

    def begin(owner: str) -> Training:
        before = {session["id"] for session in server.json("GET", "/v1/sessions", owner=owner).header["sessions"]}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
        environment |= {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS[owner], "PYTHONPATH": str(EXAMPLES)}
        program = subprocess.Popen(
            [sys.executable, "-c", TRAINING],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + 120
        while True:
            sessions = server.json("GET", "/v1/sessions", owner=owner).header["sessions"]
            opened = [session["id"] for session in sessions if session["id"] not in before]
            if opened:
                runs.append(Training(program, opened[0], owner))
                return runs[-1]
            assert program.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)

    yield begin
    for run in runs:
        run.program.kill()
        run.program.communicate()
        server.json("DELETE", f"/v1/sessions/{run.session}", owner=run.owner)
