"""A server to attack, and what an attacker has at hand: sockets without a token, a token, operators of one's own."""

from __future__ import annotations

import inspect
import socket
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import psutil

from opbox.operator.definition import Definition
from tests.attack import operator_of_the_attacker
from tests.contract.isolation import settings
from tests.contract.live import Got, Live, Session

__all__ = ["Box"]

SAMPLE_S = 0.02


class Box:
    """A live server with workers, whose API process's memory is watched.

    Owners: "py" and "bob" may upload Python, "ann" may not; see `tests.contract.live`.

    Args:
        folder: the server's own.
        python: that runs the server: another one has another version of opbox.
        further: settings beyond those of the tests.
    """

    def __init__(self, folder: Path, python: str = sys.executable, **further: str) -> None:
        self.live = Live(
            "process", folder, python=python, **settings(**{"OPBOX_STATE_DIR": str(folder / "state"), **further})
        )
        self.folder = folder
        self._ended = threading.Event()
        self._process = psutil.Process(self.live.process.pid)
        self.at_first = self.memory()
        self.most = self.at_first
        threading.Thread(target=self._watch, daemon=True).start()

    @cached_property
    def grpc_address(self) -> str:
        """Host and port of gRPC, of a server that has one: it prints them."""
        lines = self.live.process.stdout or ()
        return next(line for line in lines if line.startswith("gRPC: ")).removeprefix("gRPC: ").strip()

    def memory(self) -> int:
        """Resident bytes of the API process."""
        try:
            return int(self._process.memory_info().rss)
        except psutil.NoSuchProcess:
            return 0

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.most = max(self.most, self.memory())

    def connect(self, timeout: float = 30.0) -> socket.socket:
        """A connection of somebody without a token."""
        host, port = self.live.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=timeout)

    def run_code(
        self, function: Callable[[], object], owner: str = "py", *, needs: Sequence[Callable[..., object]] = ()
    ) -> tuple[Session, Got]:
        """Run a function's source in a code process of the owner's; "y" of the answer is what it returns, as text.

        The function imports what it uses; the functions that it `needs` go with it.
        """
        session = self.live.session(owner)
        parts = (textwrap.dedent(inspect.getsource(part)) for part in (*needs, function))
        source = "\n".join(("from __future__ import annotations", *parts))
        bundle = Definition("Custom", "attack", operator_of_the_attacker.AttackProp).source()
        define = {"do": "define", "op": "Custom", "op_type": "attack", "sha256": bundle.sha256, "bundle": bundle.json()}
        attrs = {"op_type": "attack", "__code__": bundle.sha256, "source": source, "name": function.__name__}
        return session, session.run(
            {"do": "put", "id": 1, "tensor": "x"},
            define,
            {"do": "invoke", "op": "Custom", "attrs": attrs, "inputs": [1], "outputs": [2]},
            {"do": "fetch", "id": 2, "as": "y"},
            x=np.zeros(operator_of_the_attacker.TEXT_BYTES, np.uint8),
        )

    @staticmethod
    def text(answer: Got) -> str:
        """What the function of `run_code` returned, or the error."""
        if "y" not in answer.tensors:
            return f"{answer.status}: {answer.header.get('error', '')}"
        return bytes(answer.tensors["y"]).rstrip(b"\0").decode()

    def stop(self) -> int:
        """End the server; its exit status."""
        self._ended.set()
        return self.live.stop()
