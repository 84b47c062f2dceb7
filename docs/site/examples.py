"""An example for every operator's page: code made from a row of the operator table, and what it prints.

>>> print(example("relu").code)
import opbox as mx
...
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
from tests.cases import Arg, Case, all_cases
from tests.cases.values import arguments, inputs

from opbox_ops import registry

__all__ = ["Example", "example", "face", "rows"]

WIDTH = 96
"""Columns of a line of code."""
SHOWN = (
    "print(out.shape)\nprint(out.asnumpy())",
    "for array in out:\n    print(array.shape)\n    print(array.asnumpy())",
)
"""How the result of one output is printed, and of several."""
_INNERMOST = re.compile(r"\[[^][]{,88}\]")
"""A row of numbers that stays on one line."""
LITERAL = 24
"""Elements up to which an array is written out."""
MODULES = {"_contrib_": "contrib", "_image_": "image", "_linalg_": "linalg", "_random_": "random", "_sample_": "random"}
"""The modules of mx.nd by the prefix of their operators."""

WRITTEN = {
    "_foreach": """\
rows = mx.nd.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
sums, last = mx.nd.contrib.foreach(lambda row, total: (row + total, row + total), rows, mx.nd.zeros((2,)))
print(sums.asnumpy(), last.asnumpy())
""",
    "_while_loop": """\
step = lambda i, total: (total, (i + 1, total + i))
outputs, (i, total) = mx.nd.contrib.while_loop(
    lambda i, total: i <= 3, step, (mx.nd.array([1.0]), mx.nd.array([0.0])), max_iterations=5
)
print(i.asnumpy(), total.asnumpy())
""",
    "_set_value": """\
x = mx.nd.zeros((2, 3))
mx.nd._internal._set_value(src=1.5, out=x)
print(x.asnumpy())
""",
    "reset_arrays": """\
x, y = mx.nd.ones((2,)), mx.nd.ones((3,))
mx.nd.reset_arrays(x, y, num_arrays=2)
print(x.asnumpy(), y.asnumpy())
""",
    "_cond": """\
x = mx.nd.array([4.0])
print(mx.nd.contrib.cond(x > 2, lambda: x * 10, lambda: x - 10).asnumpy())
""",
}
"""Examples of the operators that a row of the table says too little of: those that take functions or write in place."""


@dataclass(frozen=True, slots=True)
class Example:
    """A program and what it prints."""

    code: str
    output: str


@cache
def _rows_by_operator() -> dict[str, list[Case]]:
    table: dict[str, list[Case]] = {}
    for case in all_cases():
        table.setdefault(registry.get(case.op).name, []).append(case)
    return table


def rows(name: str) -> list[Case]:
    """The rows of an operator, those first that show it best: few elements, none of them empty or not finite."""

    def cost(case: Case) -> tuple[Any, ...]:
        sizes = [int(np.prod(arg.shape)) for arg in arguments(case).values()]
        odd = any(
            arg.values is not None and not np.all(np.isfinite(np.asarray(arg.values, dtype=np.float64)))
            for arg in arguments(case).values()
        )
        return (0 in sizes, odd, case.dtypes[0] != "float32", max(sizes, default=0) > LITERAL, not case.oracle)

    return sorted(_rows_by_operator().get(name, []), key=cost)


def face(name: str) -> str:
    """How Python calls an operator: nd.relu, nd.contrib.box_iou, nd._internal._plus_scalar."""
    if not name.startswith("_"):
        return f"nd.{name}"
    for prefix, module in MODULES.items():
        if name.startswith(prefix):
            return f"nd.{module}.{name.removeprefix(prefix)}"
    return f"nd._internal.{name}"


def example(name: str) -> Example:
    """The example of an operator, run just now.

    Raises:
        LookupError: no row of the table makes one.
    """
    if name in WRITTEN:
        code = f"import opbox as mx\n\n{WRITTEN[name]}"
        return Example(code, run(code))
    problem: Exception | None = None
    for code in _programs(name):
        try:
            return Example(code, run(code))
        except Exception as error:  # the next spelling or row may do
            problem = problem or error
    raise LookupError(f"{name}: expected a row of tests/cases that runs on arrays, got none") from problem


def run(code: str) -> str:
    """What a program prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), np.printoptions(precision=4, suppress=True, threshold=60):
        exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def _programs(name: str) -> Iterator[str]:
    for case in rows(name)[:6]:
        for by_name in (False, True):
            yield from (_program(name, case, by_name, show) for show in SHOWN)


def _program(name: str, case: Case, by_name: bool, show: str) -> str:
    dtype = case.dtypes[0]
    arrays = inputs(case, dtype)
    lines = [_array(arg, spec, arrays[arg]) for arg, spec in arguments(case).items()]
    names = [f"{arg}={arg}" if by_name else arg for arg in arrays]
    attrs = [f"{key}={_text(value)}" for key, value in case.attrs.items() if value != "None"]
    call = _wrapped(f"out = mx.{face(name)}(", [*names, *attrs])
    seed = ["mx.random.seed(0)"] if case.random or any("random." in line for line in lines) else []
    numpy = ["import numpy as np"] if any("np." in line for line in (*lines, call)) else []
    head = "\n".join([*numpy, "import opbox as mx"])
    if numpy:
        head = head.replace("np\nimport", "np\n\nimport")
    return "\n".join([head, "", *seed, *lines, call, show, ""])


def _array(name: str, spec: Arg, drawn: np.ndarray) -> str:
    """The line, or lines, that make an array of a row."""
    typed = [] if drawn.dtype == np.float32 else [f'dtype="{drawn.dtype.name}"']
    if drawn.size <= LITERAL or spec.values is not None:
        rounded = np.round(drawn, 2)
        tied = spec.kind == "distinct" and np.unique(rounded).size != drawn.size
        values = drawn if spec.values is not None or tied else rounded
        return _wrapped(f"{name} = mx.nd.array(", [_text(values.tolist()), *typed])
    if spec.kind == "distinct":
        numbers = f"np.random.RandomState(0).permutation({drawn.size}).reshape({drawn.shape})"
        return _wrapped(f"{name} = mx.nd.array(", [numbers, *typed])
    low, high = (-6, 6) if drawn.dtype.kind in "iu" and (spec.low, spec.high) == (-1.0, 1.0) else (spec.low, spec.high)
    if spec.kind == "int" or drawn.dtype.kind in "iub":
        numbers = f"np.random.RandomState(0).randint({int(low)}, {int(high) + 1}, {drawn.shape})"
        return _wrapped(f"{name} = mx.nd.array(", [numbers, *typed])
    return _wrapped(f"{name} = mx.nd.random.uniform(", [f"{low}, {high}, shape={drawn.shape}", *typed])


def _text(value: Any) -> str:
    """A value as Python reads it, without digits that float32 adds."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        if not np.isfinite(value):
            return "np.nan" if np.isnan(value) else "np.inf" if value > 0 else "-np.inf"
        return repr(float(f"{value:.6g}"))
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _wrapped(head: str, parts: list[str]) -> str:
    """A call in one line, or with its arguments on lines of their own where that would be too long."""
    line = f"{head}{', '.join(parts)})"
    if len(line) <= WIDTH:
        return line
    wrap = textwrap.TextWrapper(WIDTH, initial_indent="    ", subsequent_indent="     ", break_long_words=False)
    whole = [_INNERMOST.sub(lambda row: row[0].replace(" ", "\0"), part) for part in parts]
    lines = [line for part in whole for line in wrap.wrap(f"{part},")]
    return "\n".join([head, *lines, ")"]).replace("\0", " ")


def shapes(name: str, most: int = 4) -> list[tuple[Mapping[str, Any], list[tuple[int, ...]], list[tuple[int, ...]]]]:
    """Parameters, input shapes and output shapes of a few unlike calls, by running them.

    Returns:
        at most `most` rows of (parameters, shapes of the inputs, shapes of the outputs).
    """
    import opbox as mx

    results: list[tuple[Mapping[str, Any], list[tuple[int, ...]], list[tuple[int, ...]]]] = []
    seen: set[Any] = set()
    for case in rows(name):
        dims = [tuple(arg.shape) for arg in arguments(case).values()]
        key = (tuple(dims),)
        if key in seen:
            continue
        seen.add(key)
        arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs(case, case.dtypes[0]).values()]
        try:
            out = attrgetter(face(name))(mx)(*arrays, **case.attrs)
            outs = out if isinstance(out, list | tuple) else [out]
            results.append((case.attrs, dims, [tuple(array.shape) for array in outs]))
        except mx.base.MXNetError:  # a row for graphs alone
            continue
        if len(results) == most:
            break
    return results
