"""Runs a program in which files of the project have more in them: what adding something to it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["run_with"]

_BEGINNING = """
import importlib.machinery, importlib.util, json, sys
APPENDED, NEW = json.loads(sys.argv[1])

class Longer(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        return compile(self.get_data(self.path).decode() + APPENDED[name], self.path, "exec")

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in NEW:
            return importlib.util.spec_from_file_location(name, NEW[name])
        if name not in APPENDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        return importlib.util.spec_from_file_location(
            name, spec.origin, loader=Longer(name, spec.origin),
            submodule_search_locations=spec.submodule_search_locations)

sys.meta_path.insert(0, Finder)
"""


def run_with(appended: Mapping[str, str], new: Mapping[str, Path], program: str) -> str:
    """What a program prints, in a process of its own.

    Args:
        appended: what stands behind the text of modules, by their names.
        new: further modules, by their names, and the files that they are in.
        program: its source.
    """
    changes = json.dumps([dict(appended), {name: str(path) for name, path in new.items()}])
    done = subprocess.run(
        [sys.executable, "-c", _BEGINNING + program, changes], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
