"""The wall clock of a whole server jumps by days, forth and back: a library before libc's shifts what it reads."""

from __future__ import annotations

import json
import mmap
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import IDENTITY, SCOPES, SLOW, TOKENS, Live
from tests.contract.test_access import wait_for

X = np.arange(6, dtype=np.float32)
DAY_S = 86_400
COMPILER = shutil.which("cc") or shutil.which("gcc")
SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("CLOCK_SHIFT");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *place = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (place != MAP_FAILED) shift = place;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, id, now);
    if (!result && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


class Clock:
    """The wall clock of processes that have the library."""

    def __init__(self, folder: Path) -> None:
        assert COMPILER is not None
        source, self.library, self.file = folder / "shift.c", folder / "shift.so", folder / "shift"
        source.write_text(SHIM)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", self.library, source, "-ldl"], check=True)
        self.file.write_bytes(bytes(8))
        with self.file.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)

    def set(self, seconds: int) -> None:
        """Let it be so many seconds after the machine's."""
        self._shift[:] = struct.pack("q", seconds)

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CLOCK_SHIFT": str(self.file)}

    def close(self) -> None:
        self._shift.close()


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    one = Clock(tmp_path)
    yield one
    one.close()


def forward(server: Live, owner: str = "ann", graph: Any = IDENTITY) -> Any:
    return server.call("POST", "/v1/forward", {"graph": graph}, {"x": X}, owner=owner)


def hour_hence() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_server_goes_on_when_the_clock_jumps(
    start: Callable[..., Live], clock: Clock, tmp_path: Path, isolation: str
) -> None:
    expiry = {"bob": {"expires": hour_hence()}}
    tokens = [{"name": n, "token": t, "scopes": SCOPES[n], **expiry.get(n, {})} for n, t in TOKENS.items()]
    file, state = tmp_path / "tokens.json", tmp_path / "state"
    file.write_text(json.dumps({"tokens": tokens, "owners": {"py": {"worker_seconds": 0.5}}}))
    server = start(
        isolation,
        OPBOX_TOKENS="",
        OPBOX_TOKENS_FILE=str(file),
        OPBOX_STATE_DIR=str(state),
        OPBOX_SESSION_TTL_S="300",
        **clock.env,
    )
    before = server.json("GET", "/v1/usage").header["days"]
    session = server.session()
    save = {"do": "checkpoint", "name": "run", "arrays": {"x": 1}, "step": 1}
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, save, x=X).status == 200
    sent, days = 2, set()
    for jump, bob in ((DAY_S, 401), (-DAY_S, 200), (0, 200), (2 * DAY_S, 401)):
        clock.set(jump)
        # The clock is the server's own now: what it stamps is that far away.
        created = server.session().run({"do": "seed", "seed": 1})
        assert created.status == 200
        sent += 2
        assert forward(server).status == 200
        assert session.run({"do": "fetch", "id": 1, "as": "x"}).tensors["x"].tolist() == X.tolist()
        sent += 2
        assert forward(server, "bob").status == bob
        # A day's quota is that day's; when the next begins is told in at most a day.
        assert forward(server, "py", SLOW).status == 200
        wait_for(lambda: forward(server, "py").status == 429)
        refused = forward(server, "py")
        assert 0 < int(refused.http["retry-after"]) <= DAY_S
        today = (datetime.now(UTC) + timedelta(seconds=jump)).date()
        wait_for(lambda: any(row["day"] == str(today) for row in server.json("GET", "/v1/usage").header["days"]))  # noqa: B023
        days.add(str(today))
        fresh = server.session()
        restored = fresh.run({"do": "restore", "name": "run"}, {"do": "fetch", "id": 1, "as": "x"})
        assert restored.status == 200, restored.header
        assert restored.tensors["x"].tolist() == X.tolist()
        assert session.run({**save, "step": 2}).status == 200
        sent += 3
        state_of = server.json("GET", session.path).header
        assert state_of["idle_s"] < 60
    used = server.json("GET", "/v1/usage").header["days"]
    assert {row["day"] for row in used} >= days
    assert sum(row["requests"] for row in used) >= sum(row["requests"] for row in before) + sent
    assert server.stop() == 0
    assert "Traceback" not in Path(server.log.name).read_text()
