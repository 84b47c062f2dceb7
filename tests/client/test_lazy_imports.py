"""`import opbox` loads next to nothing, and a program what it uses; nobody can tell, but by the time it takes."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import pydoc
import subprocess
import sys
from types import ModuleType

import pytest

import opbox as mx
from opbox import operator


def _loaded(program: str) -> set[str]:
    """The modules that a program of its own loads."""
    code = f"{program}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def _client(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name == "opbox" or name.startswith("opbox.")}


def test_import_loads_three_modules_and_no_numpy() -> None:
    """And the one of the protocol's that has to come before NumPy."""
    loaded = _loaded("import opbox as mx; dir(mx); mx.__version__")
    assert _client(loaded) == {"opbox", "opbox._lazy", "opbox.script_errors"}
    assert "numpy" not in loaded
    protocol = {name for name in loaded if name.startswith("opbox_")}
    assert protocol == {"opbox_protocol", "opbox_protocol.idle_threads"}


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        ("import opbox as mx; mx.sym.FullyConnected(mx.sym.var('x'), num_hidden=3)", "module rnn metric io test_utils"),
        ("import opbox as mx; mx.nd.NDArray.relu", "symbol module optimizer initializer rnn"),
        ("import opbox as mx; mx.gpu(0)", "ndarray symbol executor http"),
        ("import opbox as mx; mx.operator.CustomOp", "ndarray symbol executor session"),
    ],
)
def test_a_program_loads_what_it_uses(program: str, unused: str) -> None:
    loaded = _loaded(program)
    assert not {f"opbox.{name}" for name in unused.split()} & loaded
    assert not any(name.startswith("opbox_service") for name in loaded)
    assert not {"httpx", "httpcore", "http.client"} & loaded


def test_every_name_is_there_and_listed() -> None:
    for name in mx.__all__:
        assert getattr(mx, name) is not None
        assert name in dir(mx)
    assert mx.mod is mx.module
    assert mx.sym is mx.symbol
    assert mx.nd.NDArray is mx.NDArray
    with pytest.raises(AttributeError, match="module 'opbox' has no attribute 'gluon'"):
        _ = mx.gluon  # type: ignore[attr-defined]  # the error that is tested


def test_star_imports() -> None:
    names: dict[str, object] = {}
    exec("from opbox import *", names)
    assert set(mx.__all__) <= names.keys()
    exec("from opbox.symbol import *\nfrom opbox.ndarray.linalg import *", names)
    assert callable(names["FullyConnected"])
    assert callable(names["gemm2"])


def test_help_and_inspection() -> None:
    assert "mx.sym.FullyConnected" in pydoc.plain(pydoc.render_doc(mx))
    assert "num_hidden" in pydoc.plain(pydoc.render_doc(mx.nd.FullyConnected))
    assert "Operators on Symbols" in pydoc.plain(pydoc.render_doc(mx.sym.linalg))
    assert "num_hidden" in inspect.signature(mx.sym.FullyConnected).parameters
    assert inspect.getmodule(mx.Context) is mx.context


def test_operators_that_users_write() -> None:
    assert operator.bundle is mx.operator.bundle
    assert callable(mx.operator.bundle)  # and not the module of that name
    assert set(operator.__all__) <= set(dir(operator))
    exec("from opbox.operator import *", {})


@pytest.mark.parametrize("package", ["ndarray", "symbol"])
@pytest.mark.parametrize("name", ["op", "_internal", "contrib", "image", "linalg", "random", "sparse"])
def test_modules_of_operators_can_be_imported(package: str, name: str) -> None:
    module = importlib.import_module(f"opbox.{package}.{name}")
    assert isinstance(module, ModuleType)
    assert module is getattr(getattr(mx, package), name)
    assert set(module.__all__) <= set(dir(module))


def test_modules_of_operators_in_a_new_process() -> None:
    for line in (
        "import opbox.symbol.linalg as m; m.gemm2",
        "from opbox.ndarray.contrib import arange_like",
        "import opbox.contrib.sym as m; m.arange_like",
        "from opbox.contrib import nd; nd.arange_like",
    ):
        _loaded(line)


def test_operators_are_where_their_names_say() -> None:
    for package in (mx.nd, mx.sym):
        assert callable(package.linalg.gemm2)
        assert callable(package.contrib.arange_like)
        assert callable(package.random.uniform_like)
        assert callable(package._internal._plus_scalar)
        assert not hasattr(package.op, "_plus_scalar")
        assert not hasattr(package.linalg, "FullyConnected")
        assert package.op.FullyConnected.__module__ == f"{package.__name__}.op"
    assert mx.contrib.sym is mx.sym.contrib
    with pytest.raises(AttributeError, match="refresh_operators"):
        _ = mx.nd.linalg.no_such_operator


def test_functions_and_tensors_can_be_pickled() -> None:
    for function in (mx.nd.linalg.gemm2, mx.sym.FullyConnected, mx.nd.op.relu, mx.nd.maximum):
        assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(mx.gpu(1))) == mx.gpu(1)


def test_operators_learnt_later_are_there_at_once() -> None:
    from opbox import _schema

    name = "_linalg_learnt_by_this_test"
    assert not hasattr(mx.nd.linalg, "learnt_by_this_test")
    try:
        _schema.extend([{"name": name, "inputs": [{"name": "data"}], "methods": ["learnt_by_this_test"]}])
        assert callable(mx.nd.linalg.learnt_by_this_test)
        assert "learnt_by_this_test" in dir(mx.sym.linalg)
        assert name in dir(mx.sym._internal)
        assert callable(mx.nd.NDArray.learnt_by_this_test)
    finally:
        _schema.operator._operators.pop(name)
        _schema.operator._names.pop(name)
        for tensor in (mx.nd.NDArray, mx.Symbol):
            delattr(next(base for base in tensor.__mro__ if "learnt_by_this_test" in vars(base)), "learnt_by_this_test")
