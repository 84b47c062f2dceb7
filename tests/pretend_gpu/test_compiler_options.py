"""CuPy compiles without -ftz=true, and its own texts without joined products and sums."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from opbox_ops.backend import compiler_options
from opbox_ops.backend.compiler_options import FLUSH, set_options
from opbox_ops.cuda.exact import EXACT

NAMES = ("of_a_test", "of_another", "of_a_user")
USERS = "__global__ void f() {}"


class Stop(Exception):
    """Ends a compilation: its options are known."""


def options_of(
    compiler: Any, compile_module: Any, monkeypatch: pytest.MonkeyPatch, *options: str, source: str = USERS
) -> tuple[str, ...]:
    """The options with which CuPy's own code would call NVRTC."""
    seen: list[tuple[str, ...]] = []

    def nvrtc(source: str, options: tuple[str, ...], *rest: Any) -> Any:
        seen.append(options)
        raise Stop

    monkeypatch.setattr(compiler, "_preprocess", lambda *arguments: "")
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: ("-arch=sm_90", "cubin"))
    monkeypatch.setattr(compiler, "_compile_using_nvrtc_no_warning", nvrtc)
    with pytest.raises(Stop):
        compile_module(source, options, arch="90")
    return seen[0]


def test_cupy_compiles_without_it(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler: Any = importlib.import_module("cupy.cuda.compiler")
    real = compiler._compile_with_cache_cuda
    assert FLUSH in options_of(compiler, real, monkeypatch, "-DN=1"), "CuPy's own way"
    monkeypatch.setattr(compiler, "_compile_module_with_cache", real)
    set_options(compiler)
    changed = compiler._compile_module_with_cache
    assert options_of(compiler, changed, monkeypatch, "-DN=1") == ("-DN=1",)
    # A user's own stays, and nothing stands behind it that would overrule it.
    assert options_of(compiler, changed, monkeypatch, "--ftz=true") == ("--ftz=true",)


def test_what_cupy_generates_rounds_each_step(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler: Any = importlib.import_module("cupy.cuda.compiler")
    real = compiler._compile_module_with_cache
    seen: dict[str, tuple[str, ...]] = {}

    def compile_module(source: str, options: tuple[str, ...] = (), **further: Any) -> Any:
        seen[source] = tuple(options)
        return real(source, options, **further)

    monkeypatch.setattr(compiler, "_compile_module_with_cache", compile_module)
    set_options(compiler)
    x = cupy.ones(3, "f")
    cupy.ElementwiseKernel("T x", "T y", "y = x * 3 - x", "of_a_test")(x)
    cupy.ElementwiseKernel("T x", "T y", "y = x * 3 - x", "of_another", options=EXACT)(x)
    cupy.RawKernel('extern "C" __global__ void of_a_user(float *x) { x[0] = x[1] * 3 - x[2]; }', "of_a_user")(
        (1,), (1,), (x,)
    )
    counts = {name: options.count(EXACT[0]) for source, options in seen.items() for name in NAMES if name in source}
    assert counts == {"of_a_test": 1, "of_another": 1, "of_a_user": 0}


def test_a_process_with_a_gpu_compiles_so(cupy: Any) -> None:
    compiler: Any = importlib.import_module("cupy.cuda.compiler")
    assert compiler._compile_module_with_cache.__module__ == compiler_options.__name__


def test_a_cupy_that_compiles_otherwise_is_left_alone() -> None:
    compiler = object()
    set_options(compiler)
