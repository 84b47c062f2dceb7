"""NVRTC takes every kernel text for each architecture: examples, benchmarks, the update operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.cuda.cubins import OPTIONS
from opbox_ops.cuda.kernel import KERNELS as OWN
from opbox_ops.cuda.kernel import KernelTemplate
from opbox_ops.cuda.nvrtc import ARCHITECTURES, CompileError, compile_cuda, compile_for, missing
from opbox_ops.rtc import decorate
from opbox_ops.rtc.options import checked_options
from opbox_ops.rtc.translate import for_nvrtc
from tests.rtc.test_emulator import REDUCE
from tests.rtc.test_rtc import AXPY
from tests.rtc.texts import KERNELS, REFUSED

from .machine_code import THREE_WAY_MINMAX, functions_with
from .test_machine_code import LATER, WITH_THREE_WAY_MINMAX
from .texts import elementwise_kernels, scripts, texts_in

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

UPDATES = elementwise_kernels()
registry.load()  # the families' files add their kernels


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_programs(path: Path) -> None:
    for name, source in texts_in(path):
        assert compile_cuda(for_nvrtc(source)), name


@pytest.mark.parametrize("name", UPDATES)
def test_update_operators(name: str) -> None:
    assert compile_cuda(UPDATES[name])


@pytest.mark.parametrize("kernel", OWN, ids=lambda kernel: kernel.name)
def test_kernels_of_our_own(kernel: KernelTemplate) -> None:
    assert kernel.types
    allowed = {kernel.name} & WITH_THREE_WAY_MINMAX.keys()
    for dtype in kernel.types:
        for architecture in ARCHITECTURES:
            code, _ = compile_for(architecture, kernel.source(dtype), (*OPTIONS, *kernel.options))
            assert architecture not in LATER or functions_with(THREE_WAY_MINMAX, code) <= allowed, dtype


def test_there_are_kernels_to_compile() -> None:
    assert len(UPDATES) > 60
    assert len(OWN) >= 7
    assert sum(1 for path in scripts() for _ in texts_in(path)) >= 4


def test_what_the_emulator_takes() -> None:
    assert compile_cuda(REDUCE)
    assert compile_cuda(AXPY + "template __global__ void axpy<float>(const float *, float *, float);")


@pytest.mark.parametrize("name", KERNELS)
def test_the_language_of_kernels(name: str) -> None:
    assert compile_cuda(for_nvrtc(KERNELS[name].source))


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_emulator_refuses(name: str) -> None:
    signature, body = REFUSED[name].split("|")
    with pytest.raises(CompileError):
        compile_cuda(for_nvrtc(f'extern "C" __global__ void k({signature}) {{\n{body}\n}}'))


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int8", "int32", "int64"])
def test_a_body_on_arrays_of_every_type(dtype: str) -> None:
    source, _ = decorate("f", [("x", (3,), np.dtype(dtype))], [("y", (3,), np.dtype(dtype))], "y[0] = x[0];")
    assert compile_cuda(for_nvrtc(source))


@pytest.mark.parametrize(
    "option",
    [
        *("-DN=3", "-D N=3", "-UN", "-std=c++17", "--std=c++11", "--std=c++20", "-use_fast_math", "--use_fast_math"),
        *("-lineinfo", "--lineinfo", "--device-debug", "-device-debug", "--extended-lambda", "-extended-lambda"),
        *("--extra-device-vectorization", "-extra-device-vectorization", "--device-as-default-execution-space"),
        *("-device-as-default-execution-space", "-ftz=true", "--prec-div=false", "--prec-sqrt=true", "--fmad=false"),
        *("-maxrregcount=32", "-I/usr/local/cuda/include"),
    ],
)
def test_every_option_that_is_taken(option: str) -> None:
    source = 'extern "C" __global__ void f(float *x) { x[0] = 1; }'
    assert compile_cuda(source, checked_options("f", [option]))


def test_a_mistake_is_found() -> None:
    with pytest.raises(CompileError, match=r"kernel.cu\(2\): error: .*y"):
        compile_cuda('extern "C" __global__ void f(float *x) {\nx[0] = y;\n}')


def test_a_mistake_in_a_body_is_told_by_the_bodys_lines() -> None:
    source, _ = decorate("f", [], [("x", (3,), np.dtype("float16"))], "int i = threadIdx.x;\nx[i] = y;")
    with pytest.raises(CompileError, match=r"(?m)^f.cu\(2\): error: .*y"):
        compile_cuda(for_nvrtc(source))
