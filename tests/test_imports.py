"""What the tests of a suite import is declared where that suite is set up, and brought by no other suite's packages."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_packages import PARTS, project, reached

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
MARKS = {
    "clients": ".ci/clients.txt",
    "cluster": ".ci/cluster.txt",
    "compose": ".ci/compose.txt",
    "docs": ".ci/docs.txt",
    "gpu": ".ci/pretend-gpu.txt",
    "nvrtc": ".ci/nvrtc.txt",
    "packages": ".ci/packaging.txt",
}
"""The file that declares what a suite installs beside requirements-dev.txt, by the mark of the suite's tests."""
FOLDERS = {
    "clients": ".ci/clients.txt",
    "cluster": ".ci/cluster.txt",
    "docker": ".ci/compose.txt",
    "fuzz": ".ci/fuzzing.txt",
    "gpu_check": ".ci/pretend-gpu.txt",
    "page": ".ci/page.txt",
    "pretend_gpu": ".ci/pretend-gpu.txt",
}
"""The same for files that are no tests, by their folder, and for the folder whose `conftest.py` marks its tests."""
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cupy": "cupy-cuda13x",
    "cv2": "opencv-python-headless",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "jwt": "pyjwt",
    "open_inference": "open-inference-openapi",
    "opentelemetry": "opentelemetry-sdk",
    "ruamel.yaml": "ruamel.yaml",
    "sklearn": "scikit-learn",
}
"""Distributions that are not called like the module that they bring."""
OWN = {"opbox", "opbox_ops", "opbox_protocol", "opbox_service", "tests", "benchmarks", "docs", "examples"} | {
    path.stem for folder in ("benchmarks", "examples") for path in (ROOT / folder).glob("*.py")
}
MXNETS = {"mxnet"}
"""What only programs of MXNet's Python import, which `make conformance` sets up by itself."""


def requirements_in(file: str) -> list[str]:
    return [line for line in (ROOT / file).read_text("utf-8").splitlines() if line and not line.startswith("#")]


@cache
def of_make_test() -> tuple[str, ...]:
    """The requirements of the environment that `make test` sets up, without what they bring with them."""
    parts = [requirement for part in PARTS for requirement in project(part)["dependencies"]]
    return *parts, *requirements_in("requirements-dev.txt"), "scikit-learn", "setuptools"


def distributions(requirements: tuple[str, ...] | list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def modules(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module


def distribution_of(module: str) -> str | None:
    """The distribution that brings a module; None for Python's own and ours."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in OWN:
        return None
    for name in (".".join(module.split(".")[:2]), top):
        if name in DISTRIBUTIONS:
            return canonicalize_name(DISTRIBUTIONS[name])
    return canonicalize_name(top)


def files_of(path: Path, tree: ast.AST) -> set[str]:
    """The files that declare what the suites of a file's tests install beside requirements-dev.txt."""
    folders = FOLDERS.keys() & set(path.relative_to(TESTS).parts)
    if path.name.startswith("test_") and "page" not in folders:
        marks = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_mark(node.value)}
        return {MARKS[mark] for mark in marks & MARKS.keys()}
    return {FOLDERS[folder] for folder in folders}


def is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "mark"


@pytest.mark.parametrize("folder", sorted({path.parent for path in TESTS.rglob("*.py")}), ids=lambda path: path.name)
def test_what_a_suite_imports_is_declared_where_it_is_set_up(folder: Path) -> None:
    undeclared = set()
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        imported = {name for name in map(distribution_of, modules(tree)) if name is not None}
        declared = distributions(of_make_test()).union(
            MXNETS, *(distributions(requirements_in(file)) for file in files_of(path, tree))
        )
        undeclared |= {(path.name, name) for name in imported - declared}
    assert undeclared == set()


COLLECT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split()))
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
"""A program that collects tests, to which some modules are not installed."""


def test_make_test_collects_other_suites_tests_without_their_packages() -> None:
    """As in an environment that nothing else has filled: also where this one has other suites' packages."""
    declared = reached(of_make_test())
    absent = [
        module
        for module, brought in packages_distributions().items()
        if not declared.keys() & set(map(canonicalize_name, brought)) and module not in OWN
    ]
    tests = [
        str(path.relative_to(ROOT))
        for path in sorted(TESTS.rglob("test_*.py"))
        if files_of(path, ast.parse(path.read_text("utf-8"))) - {MARKS["gpu"]}
    ]
    assert len(tests) > 20
    options = ["--collect-only", "-p", "xdist", "-p", "pytest_timeout"]
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, " ".join(absent), *options, *tests],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
