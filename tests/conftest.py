"""Fixtures that all tests share: the devices that this machine has.

A test that takes `backend` (or `xp`) runs once a device. Where a device is missing, that test is skipped under its own
name, so that the count of skipped tests tells what a machine with a GPU would run.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import settings

from opbox_ops.backend import Backend, backend_for
from opbox_ops.cpu.computes import product
from opbox_protocol.errors import UnsupportedError
from tests import skips, slices
from tests.machine import compile_errors, has_avx512_core, has_onednn, has_vector_kernels

DEVICES = ("cpu", "gpu")
os.environ.setdefault("OPBOX_GPU_SELFCHECK_S", "0")
"""The tests check every kernel themselves; those of the self-check say how long it may take."""
settings.register_profile("opbox", deadline=None)  # no test asserts times: a busy machine is no fault
settings.load_profile("opbox")


@cache
def missing(device: str) -> str | None:
    """Why this machine has no such device; None where it has."""
    try:
        backend_for(device)
    except UnsupportedError as error:
        return error.message
    return None


def pretend() -> bool:
    """Whether the GPU here is the pretend one, on which CuPy's kernels run on the CPU (tests/pretend_gpu)."""
    return missing("gpu") is None and "pretend_gpu" in sys.modules


def of_each_operator(device: str) -> bool:
    """Whether one row of each operator has to do: on the pretend GPU, where every new kernel is compiled by g++."""
    return device == "gpu" and pretend() and os.environ.get("OPBOX_PRETEND_GPU") != "whole"


def pytest_sessionstart() -> None:
    """`make gpu-check` must not pass where there is nothing to check."""
    reason = missing("gpu")
    if reason is not None and os.environ.get("OPBOX_TEST_REQUIRE_GPU"):
        pytest.exit(f"no GPU to check: {reason}", returncode=1)


LEFT_OUT = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Settle which slice of a suite runs, for all processes of the run."""
    config.stash[LEFT_OUT] = {}
    slices.settle()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in the slice, after -m and -k; skip tests of CUDA source where no C++ compiler is."""
    parameters = [getattr(getattr(item, "callspec", None), "params", {}) for item in items]
    calls = [slices.Call(item.nodeid, values) for item, values in zip(items, parameters, strict=True)]
    chosen, config.stash[LEFT_OUT] = slices.sliced(calls)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]
    if any(map(shutil.which, ("c++", "g++", "clang++"))):
        return
    skip = pytest.mark.skip(reason="no C++ compiler on this machine (on Debian: apt-get install g++)")
    for item in items:
        if item.get_closest_marker("compiler") is not None:
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test in whose process a kernel did not compile, unless it is marked to plant such a fault."""
    try:
        result = yield
    finally:
        messages = compile_errors.take()
    if messages and item.get_closest_marker("broken_kernel") is None:
        pytest.fail("\n".join(messages), pytrace=False)
    return result


def pytest_collection_finish() -> None:
    """What stays for the whole run is set aside: the end of a session collects garbage, a second with 32,000 tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skips more than its suite may, or for another reason."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    suite = skips.suite_of_this_run()
    if suite is None or reporter is None:
        return
    reasons = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in reporter.stats.get("skipped", ())]
    sentences = skips.unexpected_skips(suite, reasons)
    if sentences:
        reporter.write_line("")
        for sentence in sentences:
            reporter.write_line(f"{sentence}; if that is right, change {skips.TABLES.name}", red=True)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process of the run has left out: all leave out the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", node.config.stash[LEFT_OUT])


def device_params() -> list[Any]:
    """For parametrize: cpu and gpu, with the mark `gpu` on the latter."""
    return [pytest.param(device, marks=[pytest.mark.gpu] if device == "gpu" else []) for device in DEVICES]


@pytest.fixture(params=device_params())
def device(request: pytest.FixtureRequest) -> str:
    """ "cpu", then "gpu"."""
    name: str = request.param
    reason = missing(name)
    if reason is not None:
        pytest.skip(reason)
    return name


@pytest.fixture
def backend(device: str) -> Backend:
    """The backend of each device."""
    return backend_for(device)


@pytest.fixture
def xp(backend: Backend) -> Any:
    """numpy, or cupy."""
    return backend.xp


@pytest.fixture(params=["oneDNN", "blocks"])
def product_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes large products: "oneDNN" with its kernels for AVX-512, as without a compiler, and "blocks"."""
    kernels: str = request.param
    if kernels == "oneDNN":
        if not (has_onednn() and has_avx512_core()):
            pytest.skip("oneDNN has no kernels for this processor")
        monkeypatch.setattr(product, "blocked_product", lambda: None)
    elif not has_vector_kernels():
        pytest.skip("no C compiler, or a processor with neither AVX-512 nor AVX2")
    for calls in ("_forms", "_calls"):  # which have chosen others
        monkeypatch.setattr(importlib.import_module("opbox_service.executor.invoke"), calls, OrderedDict())
    return kernels


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the slice has left out, and the report of drawn calls."""
    lines = slices.report(terminalreporter.config.stash[LEFT_OUT])
    if lines:
        terminalreporter.section(f"left out of the slice {os.environ[slices.VARIABLE]}; make test-all runs it")
        for line in lines:
            terminalreporter.write_line(line)
    tallies = [
        value
        for results in terminalreporter.stats.values()
        for result in results
        if getattr(result, "when", "") == "call"
        for key, value in result.user_properties
        if key == "conformance"
    ]
    if tallies:
        from tests.conformance.reporting import report

        terminalreporter.section("drawn calls, in MXNet and here")
        for line in report(tallies):
            terminalreporter.write_line(line)
