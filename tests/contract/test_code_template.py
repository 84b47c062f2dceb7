"""The template that code processes are forked from: it has no secrets and no thread, and its processes end with it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service.worker.template import Template
from tests.attack.box import Box
from tests.contract.isolation import OWN_USER, SECRET, is_well, settings
from tests.contract.live import TOKENS, Live
from tests.contract.test_workers import wait_for

WITH_A_THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


def draw() -> object:
    """In a process for code: numbers of NumPy's own generator, of Python's, and its parent's process id."""
    import os
    import random

    import numpy as np

    return f"{np.random.rand()} {random.random()} {os.getppid()} {os.environ['HOME']} {os.getcwd()}"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    box = Box(tmp_path_factory.mktemp("template"), OPBOX_CODE_SPARES="2")
    yield box
    assert box.stop() == 0


def memory(pid: int) -> bytes:
    """All that a process can write to."""
    pieces = []
    with open(f"/proc/{pid}/mem", "rb") as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            places = re.match(r"(\w+)-(\w+) rw", line)
            if places is not None:
                begin, end = (int(place, 16) for place in places.groups())
                file.seek(begin)
                pieces.append(file.read(end - begin))
    return b"".join(pieces)


def test_processes_are_forked_and_have_numbers_and_folders_of_their_own(box: Box) -> None:
    server = box.live
    (template,) = server.templates()
    draws = [box.text(box.run_code(draw)[1]).split() for _ in range(2)]
    assert [drawn[2] for drawn in draws] == [str(template)] * 2
    for index in (0, 1, 3, 4):
        assert draws[0][index] != draws[1][index], draws
    for drawn in draws:
        assert drawn[3] == drawn[4]
        assert drawn[3].startswith(f"/tmp/opbox-code-{server.process.pid}-")


def test_the_template_has_no_thread_and_nothing_but_its_connection(box: Box) -> None:
    is_well(box.live)
    (template,) = box.live.templates()
    assert len(os.listdir(f"/proc/{template}/task")) == 1
    targets = {fd: os.readlink(f"/proc/{template}/fd/{fd}") for fd in os.listdir(f"/proc/{template}/fd")}
    others = {fd: target for fd, target in targets.items() if target not in ("/dev/null", box.live.log.name)}
    folders = {fd for fd, target in others.items() if target.startswith("/")}
    assert [target.split(":")[0] for fd, target in others.items() if fd not in folders] == ["socket"]
    for fd in folders:  # names of Python's folders for processes with users of their own, which open nothing
        flags = re.search(r"flags:\s*(\d+)", Path(f"/proc/{template}/fdinfo/{fd}").read_text())
        assert flags is not None
        assert int(flags[1], 8) & os.O_PATH, others[fd]


@pytest.mark.skipif(not OWN_USER, reason="needs root, to read a process's memory")
def test_the_template_knows_no_secret(box: Box) -> None:
    (template,) = box.live.templates()
    environment, all_memory = Path(f"/proc/{template}/environ").read_bytes(), memory(template)
    assert b"opbox_service.worker.code_template" in all_memory
    assert b"OPBOX_TOKENS" not in environment
    for secret in (*TOKENS.values(), SECRET):
        assert secret.encode() not in environment
        assert secret.encode() not in all_memory, secret


def test_its_end_ends_its_sessions_and_another_takes_its_place(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_SPARES="1"))
    (template,) = server.templates()
    session = server.session("py", code=True)
    bystander = server.session("bob", code=False)
    os.kill(template, signal.SIGKILL)
    wait_for(lambda: session.run({"do": "seed", "seed": 1}).status == 410)
    wait_for(lambda: server.templates() not in ([], [template]))
    is_well(server)
    assert bystander.run({"do": "seed", "seed": 1}).status == 200
    assert "the template of processes for code ended" in Path(server.log.name).read_text()


def test_nothing_of_it_outlives_a_killed_server(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_SPARES="2"))
    server.session("py", code=True)
    pids = [*server.templates(), *server.code_workers()]
    assert len(pids) >= 2
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not [pid for pid in pids if psutil.pid_exists(pid) and alive(pid)])


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_where_there_is_a_thread_nothing_is_forked(tmp_path: Path) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text(WITH_A_THREAD)
    ended: list[Template] = []

    async def fork() -> None:
        template = Template({**os.environ, "PYTHONPATH": str(tmp_path)}, ended.append)
        with pytest.raises(NotReadyError, match="expected no thread but the first, got 2 of them"):
            await template.fork("/", ())
        template.kill()

    asyncio.run(fork())
    assert len(ended) == 1


def test_a_process_that_cannot_be_forked_is_started(start: Callable[..., Live], tmp_path: Path) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text(WITH_A_THREAD)
    tmp_path.chmod(0o755)  # code's own user reads it
    server = start("process", **settings(OPBOX_CODE_SPARES="0", PYTHONPATH=str(tmp_path)))
    is_well(server)
    log = Path(server.log.name).read_text()
    assert "processes for code are started, not forked" in log
    assert "got 2 of them" in log
    assert server.stop() == 0
