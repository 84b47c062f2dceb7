"""The list of make gpu-wheels: a machine without a network gets from it all that opbox and its tests need."""

from __future__ import annotations

from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .__main__ import ROOT

OURS = {"opbox", "opbox-ops", "opbox-protocol", "opbox-service"}
THE_MACHINES = {"numpy", "scipy"}
"""They belong to its CuPy and PyTorch."""
TESTS = {"httpx", "hypothesis", "pytest", "pytest-xdist"}
THERE = {"python_version": "3.12", "python_full_version": "3.12.0", "extra": ""}


def needed() -> set[str]:
    """Names of the packages that opbox and the tests of gpu-check need, with what these need."""
    names: set[str] = set()
    coming = [*OURS, *TESTS]
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
    assert sorted(needed() - wheels.keys()) == []
    assert {name: all_pins.get(name) for name in wheels} == wheels, "the versions are those of constraints.txt"
