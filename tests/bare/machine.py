"""A minimal Debian in a folder, with a clone of this repository: commands run there as a user without rights."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HOME", "Machine", "clone"]

ROOT = Path(__file__).parents[2]
ENTER = Path(__file__).with_name("enter.sh")
HOME = "/home/newcomer"
USER, SUPERUSER = 61234, 0
"""Numbers of users. The first is nobody's on this machine: a limit on processes counts all that a user has."""


@dataclass
class Machine:
    """The root folder of a Debian, and what of this machine its pip needs.

    Attributes:
        root: the folder, in which the user's home has a clone.
        settings: pip's, as variables.
        paths: files and folders that they name.
    """

    root: Path
    settings: dict[str, str]
    paths: list[str]

    def start(self, command: str, user: int = USER, **variables: str) -> subprocess.Popen[str]:
        """Begin a command of bash in the clone; its output and its errors come in one stream."""
        environment = {"HOME": HOME, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
        return subprocess.Popen(
            ["sh", ENTER, self.root, str(user), f"cd {HOME}/opbox && {command}", *self.paths],
            env=environment | self.settings | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def output(self, command: str, user: int = USER, status: int = 0, **variables: str) -> str:
        """Return what a command prints, which must end with that status."""
        with self.start(command, user, **variables) as process:
            text, _ = process.communicate()
        assert process.returncode == status, text[-6000:]
        return text


def clone(archive: Path, folder: Path) -> Machine:
    """Unpack a Debian into a folder, and put the working tree there, as Git has it."""
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    home = folder / HOME[1:] / "opbox"
    home.mkdir(parents=True)
    for file, line in (("passwd", f"newcomer:x:{USER}:{USER}::{HOME}:/bin/bash\n"), ("group", f"newcomer:x:{USER}:\n")):
        with (folder / "etc" / file).open("a") as lines:
            lines.write(line)
    changes = subprocess.run(["git", "stash", "create"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = subprocess.run(["git", "archive", changes.strip() or "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", home], input=files.stdout, check=True)
    for path in [home.parent, *home.parent.rglob("*")]:
        os.chown(path, USER, USER, follow_symlinks=False)
    return Machine(folder, *pip_settings())


def pip_settings() -> tuple[dict[str, str], list[str]]:
    """Return how this machine's pip reaches packages: its settings as variables, and the paths that they name."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.partition("=") for line in listed.splitlines()]
    rows.sort(key=lambda row: row[0].startswith(":env:"))  # which go before those of files
    values = {name.rpartition(".")[2]: str(ast.literal_eval(value)) for name, _, value in rows}
    paths = set()
    for word in " ".join(values.values()).split():
        match = re.match(r"(file://)?(/.+?)/?$", word)
        if match is not None and Path(match[2]).exists():
            # A folder of an index has its files beside it.
            paths.add(str(Path(match[2]).parent) if match[1] and Path(match[2]).parent != Path("/") else match[2])
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in values.items()}, sorted(paths)
