"""A newcomer's first commands on a Debian that has README's packages, and on one that lacks libgomp1."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bare.machine import HOME, SUPERUSER, Machine, clone

pytestmark = [pytest.mark.bare, pytest.mark.timeout(0)]

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / ".bare" / f"{os.environ.get('DEBIAN') or 'bookworm'}.tar"
LIBGOMP = "is missing (on Debian: apt-get install libgomp1)"
SLICE = (
    "tests/test_imports.py tests/ops/test_cpu_description.py tests/service/test_backup.py "
    "tests/ops/test_levels.py::test_onednn_takes_what_it_has tests/ops/test_levels.py::test_threads_spin_for_a_time "
    "tests/service/test_walls.py tests/client/test_visualization.py tests/client/test_own_server.py "
    "tests/contract/test_sessions.py tests/protocol/test_shared_threads.py"
)
"""Tests that have failed on such a machine, or start what a machine may lack."""


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine on which README's packages are installed."""
    if not ARCHIVE.exists():
        pytest.skip("no root of Debian on this machine")
    return clone(ARCHIVE, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module", params=["with libgomp1", "without libgomp1"])
def machine(request: pytest.FixtureRequest, newcomer: Machine) -> Machine:
    """The machine as README wants it, and then without a library that it names."""
    if request.param == "without libgomp1":
        newcomer.output("dpkg --purge libgomp1", SUPERUSER)
    return newcomer


def has_libgomp(machine: Machine) -> bool:
    return bool(list(machine.root.glob("usr/lib/*/libgomp.so.1")))


def test_the_demo_trains(machine: Machine) -> None:
    """Set-up names what the machine lacks, and how to install it."""
    text = machine.output("rm -f .venv/.packages && make demo")
    accuracy = re.search(r"^validation accuracy +([\d.]+)$", text, re.M)
    assert accuracy is not None, text
    assert float(accuracy[1]) > 0.9
    assert "a C compiler (on Debian: apt-get install gcc libc6-dev)" in text
    assert (LIBGOMP in text) != has_libgomp(machine)
    assert "pip install" not in re.sub(r"^\S*python -m pip install.*$", "", text, flags=re.M)


@pytest.fixture
def served(machine: Machine) -> Iterator[dict[str, str]]:
    """The variables that README names, as a server that runs has printed them."""
    with machine.start("make serve PORT=0") as server:
        try:
            assert server.stdout is not None
            printed = ""
            for line in server.stdout:
                printed += line
                if line.startswith("page: "):
                    break
            url = re.search(r"^opbox serving on (\S+)$", printed, re.M)
            token = re.search(r"^token: (\S+)$", printed, re.M)
            assert url is not None, printed
            assert token is not None, printed
            assert (LIBGOMP in printed) != has_libgomp(machine)
            yield {"OPBOX_URL": url[1], "OPBOX_TOKEN": token[1]}
        finally:
            server.kill()


def test_the_first_script_runs_by_itself_and_on_a_server(machine: Machine, served: dict[str, str]) -> None:
    script = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)[1]
    (machine.root / HOME[1:] / "opbox" / "first.py").write_text(script, "utf-8")
    for variables in ({}, served):
        text = machine.output(".venv/bin/python first.py", **variables)
        accuracy = re.search(r"'accuracy', (?:np\.float64\()?([\d.]+)", text)
        assert accuracy is not None, text
        assert float(accuracy[1]) > 0.9


def test_a_slice_of_make_test_passes(machine: Machine) -> None:
    text = machine.output(f'make test JOBS=2 ARGS="{SLICE}"')
    passed = re.search(r"(\d+) passed", text)
    assert passed is not None, text
    assert int(passed[1]) > 100


def test_set_up_names_the_package_that_makes_environments(newcomer: Machine) -> None:
    newcomer.output("dpkg --purge $(dpkg-query -W -f '${Package} ' 'python3*-venv')", SUPERUSER)
    text = newcomer.output("sh .ci/make-venv.sh .venv-none", status=1)
    assert text == "cannot make a virtual environment: install it first, on Debian with: apt-get install python3-venv\n"
