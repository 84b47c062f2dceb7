"""The list of make gpu-wheels: a machine without a network gets from it all that opbox and its tests need."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .__main__ import ROOT, stages

OURS = {"opbox", "opbox-ops", "opbox-protocol", "opbox-service"}
OUR_FOLDERS = {name.replace("-", "_") for name in OURS} | {"tests"}
SCRIPTS = ("benchmarks", "examples")
"""Folders of scripts that import one another by their bare names."""
PLUGINS = {"pytest-timeout", "pytest-xdist"}
"""Of pytest: pyproject.toml sets the first's limit, the stages run in parallel by the second. No test imports them."""
THERE = {"python_version": "3.12", "python_full_version": "3.12.0", "extra": "", "sys_platform": "linux"}


def modules() -> Iterator[Path]:
    """The files that the stages run: tests and benchmarks, and what they import of ours."""
    parts = [part.partition("::")[0] for stage in stages() for part in stage.command]
    coming = [ROOT / part for part in parts if part.startswith(("tests/", "benchmarks/"))]
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
                place = ROOT.joinpath(*name.split("."))
                if name.startswith("tests."):
                    coming += [place.with_suffix(".py"), place / "__init__.py"]
                else:
                    coming += [ROOT / folder / f"{name}.py" for folder in SCRIPTS]


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
        if name in names:
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


def wheels(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What make gpu-wheels runs."""
    command = [sys.executable, ".ci/gpu_wheels.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_the_machine_has_is_left_out(tmp_path: Path) -> None:
    everything = wheels(str(tmp_path), "--dry-run").stdout.splitlines()
    fewer = wheels(str(tmp_path), "--dry-run", "--has", "NumPy", "--has", "pydantic-core").stdout.splitlines()
    assert len(everything) == len(pins(".ci/gpu-wheels.txt"))
    assert sorted(line.split("==")[0] for line in set(everything) - set(fewer)) == ["numpy", "pydantic_core"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--has", "nunpy"), "--has: expected packages of gpu-wheels.txt, got nunpy"),
        (("--python", "312"), "--python: expected a version such as 3.12, got '312'"),
    ],
)
def test_mistakes_in_the_command_are_named(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    refused = wheels(str(tmp_path), *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.rstrip().endswith(reason)


def test_wheels_of_other_packages_and_versions_do_not_stay(tmp_path: Path) -> None:
    """The machine has all packages but one, whose wheel is there already; nothing can be downloaded."""
    versions = pins(".ci/gpu-wheels.txt")
    stays = f"iniconfig-{versions['iniconfig']}-py3-none-any.whl"
    for name in (stays, "iniconfig-0.0.1-py3-none-any.whl", f"numpy-{versions['numpy']}-cp312-cp312-linux_x86_64.whl"):
        (tmp_path / name).write_bytes(b"")
    has = [part for name in versions if name != "iniconfig" for part in ("--has", name)]
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, ".ci/gpu_wheels.py", str(tmp_path), *has]
    subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, check=False)
    assert [path.name for path in tmp_path.iterdir()] == [stays]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs Python with the list's packages, the machine's own and the sources alone; returns what it prints."""
    site = tmp_path_factory.mktemp("site")
    for package in pins(".ci/gpu-wheels.txt"):
        installed = Path(str(distribution(package).locate_file("")))
        for top in {file.parts[0] for file in distribution(package).files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(installed / top)
    subprocess.run([sys.executable, ".ci/metadata.py", str(site)], cwd=ROOT, check=True)
    path = [*(str(ROOT / part) for part in ("protocol", "client", "ops", "service")), str(site)]
    environment = {"PATH": os.defpath, "HOME": str(site), "PYTHONPATH": os.pathsep.join(path)}

    def run(*arguments: str) -> str:
        # Without what is installed: no virtual environment with its commands, and by -S no packages.
        command = [os.path.realpath(sys.executable), "-S", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_pytest_runs_with_the_list_alone(offline: Callable[..., str]) -> None:
    assert "tests collected" in offline("-m", "pytest", "--collect-only", "tests/contract/test_devices.py")


def test_the_comparison_runs_with_the_list_alone(offline: Callable[..., str], tmp_path: Path) -> None:
    """In process and through HTTP; the columns of PyTorch stay away."""
    figures = tmp_path / "figures.json"
    options = ("--device", "cpu", "--only", "mlp", "--types", "float32", "--seconds", "0", "--json", str(figures))
    offline("benchmarks/gpu_vs_peers.py", *options)
    written = json.loads(figures.read_text("utf-8"))
    assert written["ended"] == {}
    assert written["networks"]["mlp b128 float32"]["milliseconds"].keys() == {"opbox", "opbox, TF32", "opbox, HTTP"}
