"""A session's code that has found its process's connection to the API process, and says there what it likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.attack.attack import MIB, Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import TOKENS, Got

__all__ = ["ATTACKS"]

PATIENCE_S = 5.0
"""Seconds within which another user's request is to be answered while code attacks."""
LARGE = 256 * MIB
"""Bytes on the disk at which an attack has got through."""


# -- what runs in the process for code ------------------------------------------------------------------------------


def process() -> Any:
    """The object that serves the process's connection."""
    import sys

    frame = sys._getframe()
    while frame is not None:
        server = frame.f_locals.get("self")
        if hasattr(server, "_sock") and hasattr(server, "_tasks"):
            return server
        frame = frame.f_back
    raise LookupError("no connection")


def say(header: Any, body: bytes = b"", fds: Any = ()) -> None:
    """Send a message by the process's connection."""
    import json
    import socket

    text = json.dumps(header).encode()
    socket.send_fds(process()._sock, [len(text).to_bytes(4, "little") + text + body], list(fds))


def answer(body: bytes = b"{}", **further: Any) -> None:
    """Answer the call that runs this."""
    header = {"kind": "answer", "id": max(process()._tasks), "status": 200, "header_length": None, "commands": 1}
    say({**header, "size": len(body), "segment": None, "sessions": 1, "queue": None, **further}, body)


NEEDS = (process, say, answer)


def save_events() -> object:
    import os

    for number in range(40):
        say({"kind": "save", "id": 1000 + number, "owner": "py", "name": f"n{number}"}, fds=[os.eventfd(1)])
    return "said"


def save_zeros() -> object:
    import os

    say({"kind": "save", "id": 1000, "owner": "py", "name": "zeros"}, fds=[os.open("/dev/zero", os.O_RDONLY)])
    return "said"


def save_growing() -> object:
    import os
    import threading

    fd = os.memfd_create("growing")
    os.ftruncate(fd, 1 << 20)

    def change() -> None:
        while True:
            os.ftruncate(fd, 0)
            os.ftruncate(fd, 1 << 30)

    threading.Thread(target=change, daemon=True).start()
    for number in range(20):
        say({"kind": "save", "id": 1000 + number, "owner": "py", "name": "growing"}, fds=[fd])
    return "said"


def list_brackets() -> object:
    import sys

    module = sys.modules["opbox_service.worker.process"]
    response = sys.modules["opbox_service.carriers"].RawResponse

    def serve(engine: Any, request: Any, limits: Any, send: Any, task: Any) -> None:
        send(response(200, [b'{"sessions":[' + b"[]," * 20_000_000 + b"[]]}"]))

    honest = module.serve

    def choose(engine: Any, request: Any, *further: Any) -> Any:
        return (serve if request.path == "/v1/sessions" else honest)(engine, request, *further)

    module.serve = choose
    return "ready"


def claim_memory() -> object:
    import contextlib
    import json
    import threading
    import time

    sock = process()._sock

    def claim() -> None:
        for nbytes in [1 << 40] * 40 + [1 << 63] * 40:
            text = json.dumps({"kind": "account", "ended": [], "memory": [["py", "cpu", nbytes]]}).encode()
            with contextlib.suppress(OSError):
                sock.send(len(text).to_bytes(4, "little") + text)
            time.sleep(0.1)

    threading.Thread(target=claim, daemon=True).start()
    return "said"


def status_100() -> object:
    answer(status=100)
    return "said"


def status_101() -> object:
    answer(status=101)
    return "said"


def status_99999() -> object:
    answer(status=99999)
    return "said"


def queue_of_text() -> object:
    answer(status=429, queue=[1, "1\r\nset-cookie: a=b"])
    return "said"


def endless_queue() -> object:
    answer(status=429, queue=[1, float("nan")])
    return "said"


def length_beyond() -> object:
    answer(header_length=1 << 60)
    return "said"


def reports_without_end() -> object:
    import time

    rows = [["py", "a" * 32, 1.0, 1, None, {f"n{i}": 0.5 for i in range(3000)}]]
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        say({"kind": "reported", "rows": rows})
    return "said"


def loads_without_end() -> object:
    import time

    end = time.monotonic() + 2.5
    number = 1000
    while time.monotonic() < end:
        number += 1
        say({"kind": "load", "id": number, "owner": "py", "name": "none"})
    return "said"


# -- what is looked at outside --------------------------------------------------------------------------------------


def ask(box: Box, path: str, owner: str = "bob") -> str:
    """What an owner's GET comes to within PATIENCE_S seconds."""
    headers = {"Authorization": f"Bearer {TOKENS[owner]}"}
    began = time.monotonic()
    try:
        status = httpx.get(box.live.url + path, headers=headers, timeout=PATIENCE_S).status_code
    except httpx.HTTPError as error:
        return type(error).__name__
    return f"{status} in {time.monotonic() - began:.1f} s"


def others_are_served(box: Box) -> tuple[bool, str]:
    """Whether another user gets what takes a thread or a process of the server's, and what was answered."""
    answers = {path: ask(box, path) for path in ("/v1/checkpoints", "/v1/usage", "/v1/sessions")}
    safe = all(text.startswith("200") for text in answers.values())
    return safe, ", ".join(f"{path} {text}" for path, text in answers.items())


def bytes_below(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def run(box: Box, function: Callable[[], object]) -> Got | str:
    """The answer to the code, or what came instead of one."""
    try:
        return box.run_code(function, needs=NEEDS)[1]
    except httpx.HTTPError as error:
        return type(error).__name__
    except Exception as error:  # no answer of the protocol's
        return f"{type(error).__name__}: {error}"[:100]


def ends_its_session(function: Callable[[], object]) -> Callable[[Box], Outcome]:
    """Safe: the code gets one clear error, and others are served."""

    def attack(box: Box) -> Outcome:
        got = run(box, function)
        text = got if isinstance(got, str) else box.text(got)
        served, answers = others_are_served(box)
        safe = isinstance(got, Got) and got.status == 422 and "wrote on the connection" in text
        return Outcome(safe and served, f"its own call: {text[:120]}; another user: {answers}")

    return attack


def fills_no_disk(function: Callable[[], object]) -> Callable[[Box], Outcome]:
    """Safe: the state directory does not grow, and others are served."""

    def attack(box: Box) -> Outcome:
        began = time.monotonic()
        threading.Thread(target=run, args=(box, function), daemon=True).start()
        state, most = box.folder / "state", 0
        while time.monotonic() - began < PATIENCE_S and most < LARGE:
            time.sleep(0.05)
            most = max(most, bytes_below(state))
        if most >= LARGE:
            box.live.process.kill()  # before the disk is full
            return Outcome(False, f"{most / MIB:.0f} MiB on the disk after {time.monotonic() - began:.1f} s")
        served, answers = others_are_served(box)
        return Outcome(served, f"{most / MIB:.0f} MiB on the disk; another user: {answers}")

    return attack


def listing(box: Box) -> Outcome:
    _, got = box.run_code(list_brackets, needs=NEEDS)
    if box.text(got) != "ready":
        return Outcome(False, box.text(got))
    asking = threading.Thread(target=ask, args=(box, "/v1/sessions", "py"), daemon=True)
    asking.start()
    time.sleep(0.5)
    served, answers = others_are_served(box)
    asking.join(PATIENCE_S)
    return Outcome(served, f"another user: {answers}")


def claims(box: Box) -> Outcome:
    run(box, claim_memory)
    says: list[str] = []
    end = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < end and len(says) < 10:
        got = box.live.call("POST", "/v1/sessions", {"code": True}, owner="bob")
        says.append(f"{got.status} {got.header.get('error', '')}"[:60].strip())
        if got.status == 201:
            box.live.call("DELETE", f"/v1/sessions/{got.header['id']}", owner="bob")
        time.sleep(0.5)
    refused = [text for text in says if not text.startswith("201")]
    return Outcome(
        not refused, f"of another user's {len(says)} new sessions {len(refused)} were refused: {refused[:1]}"
    )


def statuses(box: Box) -> Outcome:
    says = []
    safe = True
    for function in (status_100, status_101, status_99999, queue_of_text, endless_queue, length_beyond):
        got = run(box, function)
        fine = isinstance(got, Got) and got.status == 422 and "wrote on the connection" in got.error
        safe &= fine
        says.append(
            f"{function.__name__}: {'one clear error' if fine else got if isinstance(got, str) else got.status}"
        )
    served, answers = others_are_served(box)
    return Outcome(safe and served, f"{', '.join(says)}; another user: {answers}")


ATTACKS = [
    Attack("save-events", "code saves 40 checkpoints that are eventfds", ends_its_session(save_events)),
    Attack("save-zeros", "code saves /dev/zero", fills_no_disk(save_zeros)),
    Attack("save-growing", "code saves files that grow and shrink meanwhile", fills_no_disk(save_growing)),
    Attack("list-of-brackets", "code answers GET /v1/sessions with 60 MB of brackets", listing),
    Attack("claimed-memory", "code reports that it has 2**40 and 2**63 bytes of memory", claims),
    Attack("statuses", "code answers 100, 101, 99999, and header fields of its own", statuses),
    Attack("reports", "code reports as fast as it can", ends_its_session(reports_without_end)),
    Attack("loads", "code asks for checkpoints and reads no answer", ends_its_session(loads_without_end)),
]
