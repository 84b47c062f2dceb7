"""Formulas on arrays in rows: whole vectors are read at once, all of them before the first is used, into registers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from opbox_ops.cuda.cubins import OPTIONS
from opbox_ops.cuda.exact import EXACT
from opbox_ops.cuda.nvrtc import ARCHITECTURES, compile_for, missing, ptx_for
from opbox_ops.expression.cuda import _PREAMBLE, ARRAY_TYPES, cuda_text
from opbox_ops.expression.cuda_vectors import Formula, _Key, source
from opbox_ops.expression.language import read
from opbox_ops.expression.program import Target, compile_terms

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

_TYPES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\ntypedef __half float16; typedef __nv_bfloat16 bfloat16;\n"
"""In place of CuPy's headers, which are not here."""
LAYOUTS = {"one row": ((1, 1, 1), 1), "rows": ((1, 1, 1), 2), "a value a row": ((1, 0, 1), 3)}
VECTORS = {"float16": 8, "bfloat16": 8, "float32": 4, "float64": 2}


def text(dtype: str, layout: str) -> str:
    """The kernel of a formula over two arrays of a type."""
    narrow = "float16" in dtype
    work = "float32" if narrow else dtype
    target = Target(read("maximum(a + b, 0)", ("a", "b")), narrow)
    convert = frozenset(("a", "b") if narrow else ())
    program = compile_terms([target], {"a": 0, "b": 1}, convert=convert, singles=work == "float32")
    types = tuple(ARRAY_TYPES.items())
    body = cuda_text(program, np.dtype(work))
    formula = Formula(body, _PREAMBLE, len(program.constants), dict(types)[work], types, EXACT)
    inner, dimensions = LAYOUTS[layout]
    key = _Key((dict(types)[dtype],) * 3, 2, inner, dimensions, VECTORS[dtype], wide=False)
    return _TYPES + re.sub("#include <cupy.*\n", "", source(formula, key))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", VECTORS)
def test_vectors_are_read_at_once_and_stay_in_registers(dtype: str, layout: str) -> None:
    kernel = text(dtype, layout)
    for architecture in ARCHITECTURES:
        log = compile_for(architecture, kernel, (*OPTIONS, *EXACT, "--ptxas-options=-v"))[1]
        assert "0 bytes stack frame" in log, "vectors are in memory"
    ptx = ptx_for("sm_90", kernel, (*OPTIONS, *EXACT))
    wide = r"(?:v4\.[bu]32|v4\.f32|v2\.[bu]64|v2\.f64)"
    loads = [match.start() for match in re.finditer(rf"ld\.global\.(?:nc\.)?{wide}", ptx)]
    assert len(loads) == sum(LAYOUTS[layout][0][:2])
    between = ptx[loads[0] : loads[-1]]
    assert "bra" not in between, "a load is waited for before the next one"
    assert len(re.findall(rf"st\.global\.{wide}", ptx)) == 1
