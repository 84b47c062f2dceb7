"""What builds the image and runs commands in it: Docker, or the program that IMAGE_BUILDER names where there is none.

    IMAGE_BUILDER CONTEXT DOCKERFILE TAG --base IMAGE [--build-arg NAME=VALUE]... [-- COMMAND...]

builds the image and runs the command in it, on the host's network and with the standard input that it has, as its user.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["TAG", "Engine", "engine"]

ROOT = Path(__file__).parents[2]
TAG = "opbox:test"
STOP_S = 60
_BASE = re.compile(r"(?m)^ARG BASE=(\S+)$")


class Engine:
    """Docker, with what compose.yaml sets for a container."""

    def build(self, arguments: Mapping[str, str]) -> None:
        """Build the image TAG."""
        options = [option for name, value in arguments.items() for option in ("--build-arg", f"{name}={value}")]
        subprocess.run(
            ["docker", "build", "-q", "-f", "docker/Dockerfile", "-t", TAG, *options, "."], cwd=ROOT, check=True
        )

    def command(self, *command: str, variables: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs a command in the image."""
        options = [option for name, value in (variables or {}).items() for option in ("-e", f"{name}={value}")]
        closed = ["--read-only", "--tmpfs", "/tmp:exec,mode=1777", "--cap-drop", "ALL", "--network", "host"]
        return ["docker", "run", "--rm", "-i", "--init", *closed, *options, TAG, *command]

    def output(self, *command: str) -> str:
        """What a command in the image prints."""
        return subprocess.run(self.command(*command), capture_output=True, text=True, check=True, cwd=ROOT).stdout

    @contextmanager
    def started(self, *command: str, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """A server that starts in the image; SIGTERM stops it at the end, and its status is then in `returncode`."""
        # The shell ends the server when its own input ends, however the engine passes signals on.
        # It prints a line first: an engine that copies the image takes minutes for it, which are none of the server's.
        script = 'echo; echo ---; exec 1>&2; "$@" & server=$!; read -r line; kill -TERM $server; wait $server'
        whole = self.command("sh", "-c", script, "sh", *command, variables=variables)
        process = subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert b"---\n" in process.stdout, "the engine did not start the container"
            yield process
        finally:
            process.stdin.close()
            process.stdout.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Builder(Engine):
    """A program that builds without Docker, and runs commands in what it has built."""

    def __init__(self, program: str) -> None:
        [base] = _BASE.findall((ROOT / "docker" / "Dockerfile").read_text("utf-8"))
        self._program = [*shlex.split(program), str(ROOT), str(ROOT / "docker" / "Dockerfile"), TAG, "--base", base]
        self._options: Sequence[str] = ()

    def build(self, arguments: Mapping[str, str]) -> None:
        self._options = [option for name, value in arguments.items() for option in ("--build-arg", f"{name}={value}")]
        subprocess.run([*self._program, *self._options], cwd=ROOT, check=True)

    def command(self, *command: str, variables: Mapping[str, str] | None = None) -> list[str]:
        setting = [f"{name}={value}" for name, value in (variables or {}).items()]
        return [*self._program, *self._options, "--", *(["env", *setting] if setting else []), *command]

    def output(self, *command: str) -> str:
        # It says what it builds first.
        return super().output(*command).rpartition("\n---\n")[2]


def engine() -> Engine:
    """The program of IMAGE_BUILDER, or Docker."""
    program = os.environ.get("IMAGE_BUILDER")
    return Builder(program) if program else Engine()
