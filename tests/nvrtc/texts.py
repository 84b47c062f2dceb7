"""Where the repository's CUDA texts are: in calls of `mx.rtc` and `CudaModule`, and in the update operators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.compute import ArraySpec, CallSpec, OpReq
from opbox_ops.cuda.exact import EXACT
from opbox_ops.rtc import decorate
from tests.cases.update import CASES
from tests.cases.values import inputs

__all__ = ["elementwise_kernels", "scripts", "texts_in"]

ROOT = Path(__file__).parents[2]
# Bodies see dimensions as constants; any will do for a compiler.
DIMS = (2, 8, 6, 4)


def scripts() -> list[Path]:
    """Programs that may have kernels."""
    folders = [ROOT / "examples", ROOT / "benchmarks"]
    return sorted(path for folder in folders for path in folder.rglob("*.py") if "rtc" in path.read_text("utf-8"))


def texts_in(path: Path) -> Iterator[tuple[str, str]]:
    """(name, CUDA source) of each kernel in a program."""
    tree = ast.parse(path.read_text("utf-8"))
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def text(node: ast.expr) -> str:
        value = constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        assert isinstance(value, str), f"{path.name}:{node.lineno}: expected a text, or the name of one at module level"
        return value

    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ("rtc", "Rtc") and len(node.args) == 4:
            name = text(node.args[0])
            described = [
                [(text(pair.elts[0]), DIMS, np.dtype("float32")) for pair in side.elts] for side in node.args[1:3]
            ]
            yield name, decorate(name, *described, text(node.args[3]))[0]
        elif node.func.attr == "CudaModule":
            yield f"{path.stem}:{node.lineno}", text(node.args[0])


class _Recorder:
    """Stands where CuPy would, and notes the kernels that operators ask for."""

    def __init__(self) -> None:
        self.kernels: list[tuple[str, str, str, str]] = []

    def ElementwiseKernel(self, ins: str, outs: str, code: str, name: str, options: tuple[str, ...]) -> Any:
        assert options == EXACT
        self.kernels.append((ins, outs, code, name))
        return lambda *arrays: None


def elementwise_kernels() -> dict[str, str]:
    """CUDA sources of what the update operators hand to CuPy's ElementwiseKernel, by operator, type and request."""
    kernels = {}
    for case in CASES:
        op = registry.get(case.op)
        if not op.name.endswith("_update"):
            continue
        for dtype in case.dtypes:
            arrays = list(inputs(case, dtype).values())
            for req in (OpReq.WRITE, OpReq.ADD):
                recorder = _Recorder()
                params = op.parse({key: str(value) for key, value in case.attrs.items()})
                context: Any = SimpleNamespace(xp=recorder, req=(req,))
                specs = tuple([ArraySpec(array.shape, array.dtype) for array in arrays])
                kernel = op.choose(params, CallSpec("gpu", specs, specs[:1]))
                kernel(params, context, arrays, [np.empty_like(arrays[0])])
                for ins, outs, code, name in recorder.kernels:
                    kernels[f"{case.op}-{dtype}-{req.name.lower()}"] = _whole(ins, outs, code, name)
    return kernels


_TYPES = {"float16": "__half", "float32": "float", "float64": "double"}


def _whole(ins: str, outs: str, code: str, name: str) -> str:
    """The kernel that CuPy makes of a fragment, in short: a pointer each, and a loop."""
    passed, read = [], []
    for side, const in ((ins, "const "), (outs, "")):
        for declared in side.split(", "):
            match = re.fullmatch(r"(raw )?(\w+) (\w+)", declared)
            assert match is not None, declared
            kind = _TYPES[match[2]]
            if match[1]:
                passed.append(f"const {kind} *{match[3]}")
            else:
                passed.append(f"{const}{kind} *p_{match[3]}")
                read.append(f"{const}{kind} &{match[3]} = p_{match[3]}[i];")
    return (
        f'#include <cuda_fp16.h>\nextern "C" __global__ void {name}({", ".join(passed)}, long long n) {{\n'
        f"  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {{\n"
        f"    {' '.join(read)}\n    {code}\n  }}\n}}\n"
    )
