"""Two servers of one user with one temporary folder, in PID namespaces of their own, as in two containers."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.contract.isolation import X, settings, step
from tests.contract.live import Live, Session
from tests.service.test_scratch_dirs import OWN_PIDS, needs_namespaces

pytestmark = needs_namespaces


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder that any user enters."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.fixture
def serve(place: Path) -> Iterator[Callable[[str], Live]]:
    """Starts a server by its name; what a test that fails leaves running is killed."""
    servers: list[Live] = []

    def start(name: str) -> Live:
        folder = place / name
        folder.mkdir()
        further = settings(TMPDIR=str(place), OPBOX_CODE_SPARES="0")
        servers.append(Live("process", folder, before=OWN_PIDS, **further))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            end(server, signal.SIGKILL)


def end(server: Live, number: int) -> int:
    """End a server by a signal; the exit status of the program that started it."""
    for client in server.clients.values():
        client.close()
    (process,) = psutil.Process(server.process.pid).children()
    process.send_signal(number)
    status = server.process.wait(60)
    assert server.process.stdout is not None
    server.process.stdout.close()
    server.log.close()
    return status


def folder_of(session: Session) -> Path:
    """The folder where a session's code works."""
    shown = session.run(*step("folder"), x=X)
    return Path(shown.error.partition("folder ")[2].split()[0])


def has_its_array(session: Session) -> bool:
    answer = session.run({"do": "fetch", "id": 1, "as": "x"})
    assert answer.status == 200, answer.header
    return np.array_equal(answer.tensors["x"], X)


def test_servers_beside_each_other_keep_their_folders(place: Path, serve: Callable[[str], Live]) -> None:
    first = serve("first")
    ours = first.session("py")
    folder = folder_of(ours)
    assert (folder / "mine.txt").read_text() == "private"
    second = serve("second")
    theirs = second.session("py")
    assert (folder / "mine.txt").read_text() == "private"
    assert theirs.run(*step("nothing"), x=X).status == 200
    assert has_its_array(ours)
    assert end(second, signal.SIGKILL) != 0
    left = [path for path in place.glob("opbox-code-*") if path != folder.parent]
    assert len(left) == 1
    third = serve("third")
    assert list(place.glob("opbox-code-*")) == [folder.parent]
    assert has_its_array(ours)
    assert (folder / "mine.txt").read_text() == "private"
    assert end(third, signal.SIGTERM) == 0
    assert end(first, signal.SIGTERM) == 0
    assert not list(place.glob("opbox-code-*"))
