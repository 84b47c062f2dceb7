"""Asking MXNet 1.9.1: one process of its own Python, fed through pipes.

told = Oracle().ask("shapes", json=text, shapes={"data": [2, 3]}, partial=False)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

from .frames import receive, send

__all__ = ["Oracle", "OracleDiedError", "RefusedError", "python"]

ROOT = Path(__file__).resolve().parents[2]


class RefusedError(Exception):
    """MXNet does not take this; the message is its own."""


class OracleDiedError(Exception):
    """MXNet's process ended on this request (it aborts on some bad input); the next one goes to another."""


def python() -> str:
    """MXNet's Python: OPBOX_ORACLE_PYTHON, or the environment that make conformance sets up."""
    return os.environ.get("OPBOX_ORACLE_PYTHON") or str(ROOT / ".venv-mxnet" / "bin" / "python")


class Oracle:
    """A process that runs MXNet; started when it is first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, do: str, arrays: dict[str, Any] | None = None, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The answer's header and arrays; RefusedError when MXNet does not take it."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process.stdin, {"do": do, **asked}, arrays)
            header, answer = receive(process.stdout)
        except (EOFError, BrokenPipeError) as error:
            self.close()
            raise OracleDiedError(f"MXNet's process ended with {process.returncode}") from error
        if "died" in header:
            raise OracleDiedError(f"MXNet's process ended with {header['died']}")
        if "refused" in header:
            raise RefusedError(header["refused"])
        return header, answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [python(), "-W", "ignore", "-m", "tests.conformance.answer"],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MXNET_SUBGRAPH_VERBOSE": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process
