"""The list of make gpu-wheels: a machine without a network gets from it all that opbox and its tests need."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .__main__ import ROOT, stages

OURS = {"opbox", "opbox-ops", "opbox-protocol", "opbox-service"}
OUR_FOLDERS = {name.replace("-", "_") for name in OURS} | {"tests"}
THE_MACHINES = {"numpy", "scipy"}
"""They belong to its CuPy and PyTorch."""
PLUGINS = {"pytest-timeout", "pytest-xdist"}
"""Of pytest: pyproject.toml sets the first's limit, the stages run in parallel by the second. No test imports them."""
THERE = {"python_version": "3.12", "python_full_version": "3.12.0", "extra": "", "sys_platform": "linux"}


def modules() -> Iterator[Path]:
    """The files that the stages run: tests and benchmarks, and what they import of `tests`."""
    coming = [ROOT / part for stage in stages() for part in stage.command if part.startswith(("tests/", "benchmarks/"))]
    coming += [ROOT / "tests" / "conftest.py", ROOT / "tests" / "gpu_check" / "smoke.py"]
    seen: set[Path] = set()
    while coming:
        path = coming.pop()
        if path.is_dir():
            coming += path.glob("*.py")
        elif path.is_file() and path not in seen:
            seen.add(path)
            yield path
            for name in imports(path):
                if name.startswith("tests."):
                    place = ROOT.joinpath(*name.split("."))
                    coming += [place.with_suffix(".py"), place / "__init__.py"]


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports when it is loaded; what a function imports may be what it looks for."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            parts = path.relative_to(ROOT).parent.parts
            base = parts[: len(parts) - node.level + 1] if node.level else ()
            module = ".".join((*base, node.module))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if module.startswith("tests"))


def imported() -> set[str]:
    """The packages of others that the stages' files import."""
    packages = packages_distributions()
    names = {name.partition(".")[0] for path in modules() for name in imports(path)}
    others = names - OUR_FOLDERS - sys.stdlib_module_names - {"__future__"}
    return {canonicalize_name(package) for name in others for package in packages.get(name, ())}


def needed() -> set[str]:
    """Names of the packages that opbox and the tests of gpu-check need, with what these need."""
    names: set[str] = set()
    coming = [*OURS, *PLUGINS, *imported()]
    while coming:
        name = canonicalize_name(coming.pop())
        if name in names or name in THE_MACHINES:
            continue
        names.add(name)
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(THERE):
                coming.append(requirement.name)
    return names - OURS


def pins(name: str) -> dict[str, str]:
    """Versions by the names of packages, of a file of pins."""
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text("utf-8").splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(package): version for package, version in pairs}


def test_an_offline_machine_lacks_nothing() -> None:
    wheels, all_pins = pins(".ci/gpu-wheels.txt"), pins("constraints.txt")
    assert {"httpx", "hypothesis", "pytest"} <= imported(), "the stages' files are read"
    assert sorted(needed() - wheels.keys()) == []
    assert {name: all_pins.get(name) for name in wheels} == wheels, "the versions are those of constraints.txt"


def test_pytest_runs_with_the_list_alone(tmp_path: Path) -> None:
    """A stage's tests are collected where there is nothing but the list, as on that machine."""
    for package in (*pins(".ci/gpu-wheels.txt"), *THE_MACHINES):
        site = Path(str(distribution(package).locate_file("")))
        for top in {file.parts[0] for file in distribution(package).files or ()} - {"..", "__pycache__"}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(site / top)
    subprocess.run([sys.executable, ".ci/metadata.py", str(tmp_path)], cwd=ROOT, check=True)
    path = [*(str(ROOT / part) for part in ("protocol", "client", "ops", "service")), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pytest", "--collect-only", "tests/contract/test_devices.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests collected" in done.stdout
