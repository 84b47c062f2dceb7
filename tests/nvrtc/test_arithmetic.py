"""NVRTC's instructions for our texts: a product and a sum stay two, and small numbers are not taken for 0."""

from __future__ import annotations

import re

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.cuda.cubins import OPTIONS
from opbox_ops.cuda.exact import EXACT
from opbox_ops.cuda.kernel import KERNELS, KernelTemplate
from opbox_ops.cuda.nvrtc import ARCHITECTURES, missing, ptx_for
from opbox_ops.expression.cuda import _EXPRESSIONS, _FLOATING, _PREAMBLE, cuda_text
from opbox_ops.expression.language import read
from opbox_ops.expression.program import COPY, Target, compile_terms

from .texts import elementwise_kernels

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

registry.load()  # the families' files add their kernels

_MAY_BE_JOINED = re.compile(r"\b(?:add|sub|mul)\.f(?:32|64)\b")
"""Instructions of which the assembler may make one: those that are to round by themselves end in .rn."""
_FLUSHING = re.compile(r"\b(?:add|sub|mul|fma|setp|min|max|abs|neg|div|sqrt)\.(?:rn\.|\w\w\.)*ftz")
"""Instructions that take small numbers for 0; those with .approx are functions' own, on numbers that they scale."""
_FUNCTIONS = re.compile(r"(?:exp|log|sin|cos|tan|pow|gamma|erf|cbrt|hypot|normcdf|rsqrt)\w*\(")
"""CUDA's functions that have instructions of that kind in them, which are part of their results."""


def formula(text: str, name: str = "f") -> str:
    """A kernel of a formula over a, b and c, as CuPy makes one of what `formula_kernel` gives it."""
    program = compile_terms([Target(read(text, ("a", "b", "c")))], {"a": 0, "b": 1, "c": 2}, singles=True)
    arrays = ", ".join(f"const float *p{n}" for n in range(3))
    values = " ".join(f"const float x{n} = p{n}[i];" for n in range(3))
    values += "".join(f" const float x{3 + n} = {float(value)}f;" for n, value in enumerate(program.constants))
    body = cuda_text(program, np.dtype("float32"))
    return (
        f'extern "C" __global__ void {name}({arrays}, float *q) {{\n'
        f"const int i = threadIdx.x; {values} float &y0 = q[i];\n{body}\n}}\n"
    )


def separate(ptx: str) -> bool:
    """Whether no product is joined with a sum, by the compiler or by the assembler."""
    return "fma" not in ptx and not _MAY_BE_JOINED.search(ptx)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_step_of_a_formula_rounds(architecture: str) -> None:
    text = _PREAMBLE + formula("sqrt(a * b - square(c))")
    assert separate(ptx_for(architecture, text, (*OPTIONS, *EXACT)))
    assert not separate(ptx_for(architecture, text, OPTIONS)), "which the option is for"


def test_no_function_of_formulas_takes_small_numbers_for_zero() -> None:
    names = sorted(({**_EXPRESSIONS, **_FLOATING}).keys() - {COPY})
    texts = []
    for name in names:
        expression = _FLOATING.get(name) or _EXPRESSIONS[name]
        operands = ", ".join(letter for letter in "abc" if f"{{{letter}}}" in expression)
        texts.append(formula(f"{name}({operands})", f"f_{name}"))
    ptx = ptx_for("sm_90", _PREAMBLE + "".join(texts), (*OPTIONS, *EXACT))
    assert ptx.count(".entry") == len(names) > 40
    assert not _FLUSHING.search(ptx)
    assert _FLUSHING.search(ptx_for("sm_90", formula("a * b"), ("-ftz=true",))), "as CuPy has it"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_of_our_own(kernel: KernelTemplate) -> None:
    text = kernel.source("float32")
    ptx = ptx_for("sm_90", text, (*OPTIONS, *kernel.options))
    assert not _FLUSHING.search(ptx)
    if kernel.contracts:
        assert not separate(ptx)
    elif not _FUNCTIONS.search(text):
        assert separate(ptx)


def test_update_operators() -> None:
    for name, text in elementwise_kernels().items():
        if name.endswith("float32-write") and not _FUNCTIONS.search(text):
            assert separate(ptx_for("sm_90", text, (*OPTIONS, *EXACT))), name
