"""Code of a session sees its own processes alone, and goes on to read what programs read of themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opbox_service.worker import landlock, seccomp
from tests.attack.box import Box
from tests.attack.other_processes import look

pytestmark = pytest.mark.skipif(
    landlock.abi() < 6 or not seccomp.available(), reason="needs a kernel with Landlock 6 and seccomp"
)


@pytest.fixture(scope="module", params=[{}, {"OPBOX_CODE_USER": "0"}], ids=["own-user", "servers-user"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    box = Box(tmp_path_factory.mktemp("box"), **request.param)
    yield box
    assert box.stop() == 0


def test_it_sees_no_other_process(box: Box) -> None:
    outcome = look(box)
    assert outcome.safe, outcome.says


def test_it_sees_itself_and_the_hardware(box: Box) -> None:
    session, answer = box.run_code(read_usual_files)
    assert box.text(answer) == "all"
    session.delete()


def read_usual_files() -> object:
    import os
    import subprocess
    import threading

    def read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read(1 << 16)

    def own() -> None:
        for name in ("status", "stat", "statm", "maps", "cmdline", "comm", "mounts", "mountinfo", "cgroup", "limits"):
            assert read(f"/proc/self/{name}")
        assert str(os.getpid()) in str(read(f"/proc/{os.getpid()}/stat"))
        assert read(f"/proc/self/task/{threading.get_native_id()}/comm") == read("/proc/thread-self/comm")
        assert str(threading.get_native_id()) in os.listdir("/proc/self/task")
        assert os.listdir("/proc/self/fd")

    own()
    errors: list[Exception] = []

    def in_a_thread() -> None:
        try:
            own()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert not errors, errors
    for name in ("cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version", "filesystems", "mounts"):
        assert read(f"/proc/{name}")
    for name in ("vm/overcommit_memory", "kernel/osrelease", "kernel/random/boot_id", "kernel/threads-max"):
        assert read(f"/proc/sys/{name}")
    assert read("/sys/devices/system/cpu/online")
    assert os.cpu_count()
    assert len(os.sched_getaffinity(0))
    os.nice(1)
    assert subprocess.run(["sh", "-c", "echo child"], capture_output=True, check=True).stdout == b"child\n"
    return "all"
