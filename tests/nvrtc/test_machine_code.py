"""No kernel or formula of opbox's loses a sign where the assembler makes one instruction of two maxima."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.cuda.cubins import OPTIONS
from opbox_ops.cuda.exact import EXACT
from opbox_ops.cuda.kernel import KERNELS
from opbox_ops.cuda.nvrtc import ARCHITECTURES, compile_for, missing, ptx_for
from opbox_ops.expression.cuda import _PREAMBLE, cuda_text
from opbox_ops.expression.language import read
from opbox_ops.expression.program import Target, compile_terms

from .machine_code import THREE_WAY_MINMAX, functions_with, negated_operands

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

registry.load()  # the families' files add their kernels

WITH_THREE_WAY_MINMAX = {
    "opbox_ctc_recursion": "lengths, and numbers of other threads",
    "opbox_pool_back": "ends of windows: sums and parameters",
    "opbox_pool_whole_max_back": "positions, and those of other threads",
}
"""Kernels of which the assembler makes VIMNMX3, and what they take the smallest of: nothing that is negated."""
LATER = [architecture for architecture in ARCHITECTURES if architecture != "sm_80"]
"""Architectures that have the instruction."""


def kernel(value: str) -> str:
    return (
        'extern "C" __global__ void f(const int *x, int *y) {\n'
        f"int a = x[0], b = x[1], c = x[2];\ny[0] = {value};\n}}\n"
    )


@pytest.mark.parametrize("architecture", LATER)
@pytest.mark.parametrize(
    ("value", "three_way", "negated"),
    [
        ("max(max(a, -b), c)", True, True),
        ("min(min(a, b), c)", True, False),
        ("min(max(a, -b), c)", False, True),
        ("max(a, -b)", False, True),
        ("max(a, b) - c", False, False),
    ],
)
def test_instructions_are_seen(architecture: str, value: str, three_way: bool, negated: bool) -> None:
    code, _ = compile_for(architecture, kernel(value))
    assert functions_with(THREE_WAY_MINMAX, code) == ({"f"} if three_way else set())
    assert bool(negated_operands(ptx_for(architecture, kernel(value)))) == negated


@pytest.mark.parametrize("architecture", LATER)
@pytest.mark.parametrize("function", ["maximum", "minimum"])
def test_a_formula_keeps_the_sign(architecture: str, function: str) -> None:
    term = read(f"{function}({function}(a, negative(b)), c)", ("a", "b", "c"))
    body = cuda_text(compile_terms([Target(term)], {"a": 0, "b": 1, "c": 2}), np.dtype("int32"))
    text = (
        f'{_PREAMBLE}extern "C" __global__ void f(const int *x, int *y) {{\n'
        f"const int x0 = x[0], x1 = x[1], x2 = x[2]; int &y0 = y[0];\n{body}\n}}\n"
    )
    code, _ = compile_for(architecture, text, (*OPTIONS, *EXACT))
    assert functions_with(THREE_WAY_MINMAX, code) == set()


@pytest.mark.parametrize("name", WITH_THREE_WAY_MINMAX)
def test_what_is_compared_three_at_a_time_is_not_negated(name: str) -> None:
    [template] = [template for template in KERNELS if template.name == name]
    options = (*OPTIONS, *template.options)
    code, _ = compile_for("sm_90", template.source("float32"), options)
    assert functions_with(THREE_WAY_MINMAX, code) == {name}, "it need not be listed"
    assert negated_operands(ptx_for("sm_90", template.source("float32"), options)) == set()
