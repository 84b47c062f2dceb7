"""The example of an operator package: as installed, its own tests pass, and a server has its operators."""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from .programs import EXAMPLES, run

PACKAGE = EXAMPLES / "ops_package"


@pytest.fixture(scope="module")
def installed() -> Iterator[dict[str, str]]:
    """An environment in which the package is installed: its modules, and the entry points of its pyproject.toml."""
    # Where other users can read, as they can what is installed: a session with code may run as one.
    with tempfile.TemporaryDirectory(prefix="opbox-site-") as site:
        Path(site).chmod(0o755)
        _install(Path(site))
        yield {"PYTHONPATH": os.pathsep.join([site, os.environ.get("PYTHONPATH", "")])}


def _install(folder: Path) -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    for name in project["tool"]["setuptools"]["packages"]:
        shutil.copytree(PACKAGE / name, folder / name)
    metadata = folder / "opbox_example_ops-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: opbox-example-ops\nVersion: 0.1.0\n")
    groups = project["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


def test_its_own_tests(installed: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests")
    printed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "tests"), env=installed)
    assert " passed" in printed


def test_the_command_knows_its_operators(installed: dict[str, str]) -> None:
    assert "A factor, and a shift for each channel." in run("-m", "opbox.cli", "ops", "scaled_shift", env=installed)
    assert "\nrunning_center " in run("-m", "opbox.cli", "ops", env=installed)


def test_a_server_has_its_operators(installed: dict[str, str]) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(EXAMPLES)!r})
from lenet_demo import server
with server("process") as (url, token):
    import opbox as mx
    mx.connect(url, token)
    try:
        mx.nd.scaled_shift
    except AttributeError as error:
        print(error)
    print(mx.refresh_operators())
    y = mx.nd.scaled_shift(mx.nd.ones((1, 2, 1, 1)), mx.nd.array([1, 2]), scale=10)
    print(y.asnumpy().ravel().tolist())
    mx.disconnect()
"""
    printed = run("-c", program, env=installed)
    assert "module 'opbox.ndarray' has no attribute 'scaled_shift'; mx.refresh_operators() learns" in printed
    assert "['running_center', 'scaled_shift']" in printed
    assert "[11.0, 12.0]" in printed


def test_the_file_alone_is_enough_for_lint() -> None:
    printed = run("-m", "opbox.cli", "lint", str(PACKAGE / "opbox_example_ops" / "running_center.py"))
    assert "running_center (registry)" in printed
    assert printed.rstrip().endswith("none failed")
