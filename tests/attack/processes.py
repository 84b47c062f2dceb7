"""Processes of the server that stop, by their own code or from outside, and too many of them: those that convert."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil

import opbox as mx
from opbox_protocol.errors import MXNetError
from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import TOKENS
from tests.models.folders import FEATURES, perceptron

__all__ = ["ATTACKS"]

LIST_S = 6.0
"""Seconds that a list may take: five for a worker that does not answer, and one beside them."""
CONVERSIONS, FILES = 2, 3
"""Number of conversions that may run at a time, and of files that each of two owners publishes at a time."""
PROGRAM = "opbox_service.worker.onnx_process"
SILENT_S = "10"


def stop_itself() -> object:
    import os
    import signal
    import time

    os.kill(os.getpid(), signal.SIGSTOP)  # which a thread may outrun, far enough to answer
    time.sleep(600)
    return "went on"


def stopped_code(box: Box) -> Outcome:
    _, answer = box.run_code(stop_itself)
    safe = answer.status == 504 and "its process was ended" in answer.error
    return Outcome(safe, f"{answer.status}: {answer.header.get('error', box.text(answer))[:80]}")


def stopped_worker(box: Box) -> Outcome:
    """Stop the worker that the other user's session is not in; opening and listing goes on, and it is replaced."""
    workers = [psutil.Process(pid) for pid in box.live.workers()]
    before = [sum(worker.cpu_times()[:2]) for worker in workers]
    time.sleep(1)
    used = [sum(worker.cpu_times()[:2]) - seconds for worker, seconds in zip(workers, before, strict=True)]
    idle = workers[used.index(min(used))]
    os.kill(idle.pid, signal.SIGSTOP)
    longest, until = 0.0, time.monotonic() + 2 * float(SILENT_S)
    was_ready = []
    try:
        while idle.pid in box.live.workers() and time.monotonic() < until:
            for path in ("/v1/sessions", "/v1/devices"):
                begun = time.monotonic()
                box.live.json("GET", path, owner="bob")
                longest = max(longest, time.monotonic() - begun)
            was_ready.append(box.live.json("GET", "/v2/health/ready").status == 200)
            time.sleep(0.1)
    finally:
        if idle.is_running():
            os.kill(idle.pid, signal.SIGCONT)
    replaced = idle.pid not in box.live.workers()
    safe = replaced and longest <= LIST_S and not all(was_ready)
    words = "was replaced" if replaced else "was left as it is"
    return Outcome(safe, f"it {words}; a list took {longest:.1f} s; ready was 200 in {sum(was_ready)}/{len(was_ready)}")


def conversions(box: Box) -> Outcome:
    """Two owners publish several ONNX files at a time."""
    net, params = perceptron()
    file = box.folder / "model.onnx"
    mx.onnx.export_model(net, [params, {}], [(1, FEATURES)], onnx_file_path=str(file))
    content, answers = file.read_bytes(), []

    def publish(owner: str, name: str) -> None:
        with mx.serve.Client(box.live.url, TOKENS[owner]) as client:
            try:
                client.publish(name, {"model.onnx": content})
                answers.append("taken")
            except MXNetError as error:
                answers.append(type(error).__name__)

    threads = [
        threading.Thread(target=publish, args=(owner, f"net{i}")) for i in range(FILES) for owner in ("bob", "py")
    ]
    for thread in threads:
        thread.start()
    most, server = 0, psutil.Process(box.live.process.pid)
    while any(thread.is_alive() for thread in threads):
        most = max(most, sum(_converts(process) for process in server.children(recursive=True)))
        time.sleep(0.05)
    taken = answers.count("taken")
    return Outcome(most <= CONVERSIONS and taken == len(threads), f"{most} at a time; {taken} of {len(threads)} taken")


def _converts(process: psutil.Process) -> bool:
    try:
        return PROGRAM in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


ATTACKS = [
    Attack("code-stops-itself", "code that stops its own process", stopped_code, {"OPBOX_CODE_DEADLINE_S": "3"}),
    Attack("stopped-worker", "one worker of two is stopped from outside", stopped_worker, {"OPBOX_WORKERS": "2"}),
    Attack("conversions", "six ONNX files of two owners at a time", conversions, limit_s=180),
]
