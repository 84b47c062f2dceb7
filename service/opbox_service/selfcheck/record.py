"""The verdict of a device's self-check, on disk beside the compiled kernels: a line of JSON for each finding.

    {"identity": {"device": "NVIDIA H100", "driver": "…", …}}
    {"started": 1}
    {"running": [["softmax/cuda.softmax", "float32"]]}
    {"unit": "softmax 0 float32", "answers": [["softmax/cuda.softmax", "float32", ""]]}
    {"lost": [["sort/cuda.order", "*"]], "reason": "its process was killed by SIGSEGV"}
    {"finished": 1}

A line that cannot be read is passed over, and so is a file of another identity: the check then finds it out anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opbox_ops.backend.kernel_cache import kernel_folders
from opbox_ops.trust import ANY_TYPE

__all__ = ["Record", "copy_verdicts"]

Name = tuple[str, str]
_PREFIX, _SUFFIX = "opbox-selfcheck-", ".jsonl"
MAX_INTERRUPTIONS = 2
"""How often a process may end for an unknown reason while a compute runs, before the compute counts as the reason."""


class Record:
    """What is known of a device.

    Args:
        path: the file, which need not be there.
        identity: what it holds for.

    Attributes:
        answers: by compute and type: why it is not trusted; empty where it is right.
        units: the units of the check that are done.
        finished: whether all are.
        problem: why it cannot be kept on disk; empty if it can.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path, self.identity = path, dict(identity)
        self._forget()

    def _forget(self) -> None:
        self.answers: dict[Name, str] = {}
        self.units: set[str] = set()
        self.finished = False
        self.problem = ""
        self._running: list[Name] = []
        self._interrupted: Counter[Name] = Counter()

    @classmethod
    def of(cls, folder: Path, identity: Mapping[str, str]) -> Record:
        """The record of an identity in a folder, as far as it can be read."""
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        record = cls(folder / f"{_PREFIX}{key}{_SUFFIX}", identity)
        record.read()
        return record

    def read(self) -> None:
        """Read the file anew."""
        self._forget()
        lines = list(_lines(self.path))
        if not lines or lines[0].get("identity") != self.identity:
            return
        for line in lines[1:]:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        if "started" in line:
            self._note_interruption()
        elif "running" in line:
            self._running = [(str(name), str(dtype)) for name, dtype in line["running"]]
        elif "unit" in line:
            for name, dtype, reason in line["answers"]:
                self._answer((str(name), str(dtype)), str(reason))
            self.units |= {str(line["unit"])} - {""}
            self._running = []
        elif "lost" in line:
            for name, dtype in line["lost"]:
                self._answer((str(name), str(dtype)), str(line["reason"]))
            self._running = []
        elif "stopped" in line:
            self._running = []
        elif "finished" in line:
            self.finished = True

    def _answer(self, name: Name, reason: str) -> None:
        self.answers[name] = self.answers.get(name) or reason

    def _note_interruption(self) -> None:
        """Count what ran when a process and its supervisor ended together: the machine's end, or a kernel's doing."""
        for name in self._running:
            self._interrupted[name] += 1
            if self._interrupted[name] >= MAX_INTERRUPTIONS:
                self._answer((name[0], ANY_TYPE), "the process that checked it ended while it ran, twice")
        self._running = []

    @property
    def lost(self) -> list[str]:
        """The computes that are not to run again, even to be checked."""
        return sorted({name for (name, dtype), reason in self.answers.items() if dtype == ANY_TYPE and reason})

    def add(self, **line: Any) -> None:
        """Note a finding, here and on disk."""
        self._take(line)
        self._write([line])

    def begin(self) -> None:
        """Make the file begin as this record does, whatever is in it."""
        self._note_interruption()
        lines: list[dict[str, Any]] = [{"identity": self.identity}]
        for name, count in self._interrupted.items():
            lines += [{"running": [name]}, {"started": 1}] * count
        lines += [{"unit": unit, "answers": []} for unit in sorted(self.units)]
        if self.answers:
            lines.append({"unit": "", "answers": [[*name, reason] for name, reason in self.answers.items()]})
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        partial = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.chmod(0o644)
            partial.replace(self.path)
        except OSError as error:
            self._cannot_keep(error)

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        if self.problem:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))
        except OSError as error:
            self._cannot_keep(error)

    def _cannot_keep(self, error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        self.problem = f"the verdict cannot be kept in {self.path.parent} ({reason}): every process checks anew"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that are objects of JSON; none where there is no file to read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def copy_verdicts(folder: Path) -> None:
    """Copy this process's verdicts to a folder, for a process of another user that reads no other."""
    for path in kernel_folders()[0].glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # that process checks for itself
            shutil.copyfile(path, folder / path.name)
            (folder / path.name).chmod(0o644)
