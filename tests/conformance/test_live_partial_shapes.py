"""infer_shape_partial of every row of the operator table, some shapes unknown, in both of MXNet's modes.

What is known in MXNet is known here, and the same. More may be known here, and MXNet refuses to infer some in part.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import opbox as mx
from opbox import _schema
from opbox.symbol.compose import create
from tests.cases import Case, all_cases
from tests.cases.values import arguments

from .mxnet import Oracle, RefusedError

pytestmark = pytest.mark.conformance

Shapes = dict[str, list[int]]

COUNTED = "MXNet counts with the number that stands for an unknown size, and tells a size that is wrong."
RANKLESS = "In numpy mode MXNet's output for a single matrix has no dimensions; here it has one."
DIFFERENT = {
    "Concat": COUNTED,
    "Pad": COUNTED,
    "RNN": COUNTED,
    "UpSampling": COUNTED,
    "_contrib_interleaved_matmul_encdec_valatt": COUNTED,
    "_image_resize": COUNTED,
    "_linalg_makediag": COUNTED,
    "_rnn_param_concat": COUNTED,
    "broadcast_like": COUNTED,
    "diag": COUNTED,
    "_linalg_det": RANKLESS,
    "_linalg_slogdet": RANKLESS,
}
"""Operators of which MXNet tells something else, and why."""


def _rows() -> list[Any]:
    rows = {f"{case.op}{sorted(case.attrs.items())}": case for case in all_cases() if case.oracle}
    return [pytest.param(case, id=case.id) for case in rows.values() if not case.imperative]


def _queries(case: Case) -> Iterator[Shapes]:
    """Nothing known; one shape, or all but one; and some of the sizes."""
    shapes = {name: list(arg.shape) for name, arg in arguments(case).items()}
    rng = Random(case.id)
    yield {}
    for name in shapes:
        yield {name: shapes[name]}
        yield {other: shapes[other] for other in shapes if other != name}
    for _ in range(4):
        named = [name for name in shapes if rng.random() < 0.8]
        yield {name: [-1 if rng.random() < 0.35 else d for d in shapes[name]] for name in named}


def _in_terms_of_inference(shape: Any, np_shape: bool) -> list[int] | None:
    """-1 for an unknown size, None for an unknown shape."""
    if np_shape or shape is None:
        return None if shape is None else list(shape)
    return [d or -1 for d in shape] or None


def _as_known(ours: list[int] | None, theirs: list[int] | None) -> bool:
    if theirs is None:
        return True
    return (
        ours is not None and len(ours) == len(theirs) and all(b in (a, -1) for a, b in zip(ours, theirs, strict=True))
    )


@pytest.mark.parametrize("case", _rows())
def test_what_mxnet_infers_in_part_is_inferred(oracle: Oracle, case: Case) -> None:
    attrs = {key: str(value) for key, value in case.attrs.items()}
    names = list(arguments(case))
    symbol = mx.sym.Symbol(
        create(_schema.get(case.op), case.op, list(map(mx.sym.Variable, names)), {}, attrs, "op", None)
    )
    for np_shape in (False, True):
        for query in _queries(case):
            shapes = {name: tuple(d if d > 0 or np_shape else 0 for d in dims) for name, dims in query.items()}
            call = {"op": case.op, "attrs": attrs, "names": names, "partial": True, "np_shape": np_shape}
            try:
                theirs = oracle.ask("shapes", shapes=shapes, **call)[0]
            except RefusedError:
                continue
            with mx.util.np_shape(np_shape):
                ours = symbol.infer_shape_partial(**shapes)
            for side, listed in zip(("arg_shapes", "out_shapes", "aux_shapes"), ours, strict=True):
                assert listed is not None
                pairs = [
                    (_in_terms_of_inference(a, np_shape), _in_terms_of_inference(b, np_shape))
                    for a, b in zip(listed, theirs[side], strict=True)
                ]
                known = all(_as_known(a, b) for a, b in pairs)
                assert known or case.op in DIFFERENT, f"{side} of {shapes}: here and in MXNet {pairs}"
