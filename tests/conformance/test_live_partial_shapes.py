"""infer_shape_partial of every row of the operator table, some shapes unknown, in both of MXNet's modes.

What is known in MXNet is known here, the same and no more. What MXNet refuses to infer in part may be inferred here.
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
FORGOTTEN = "MXNet forgets the known size of a parameter where data's channels are unknown."
ONE_WAY = "MXNet passes a size on to the inputs that come later alone."
RANKLESS = "In numpy mode MXNet's output for a single matrix has no dimensions; here it has one."
DIFFERENT = {
    **dict.fromkeys(
        (
            *("Concat", "Pad", "RNN", "UpSampling", "_contrib_interleaved_matmul_encdec_valatt", "_image_resize"),
            *("_linalg_makediag", "_rnn_param_concat", "broadcast_like", "diag"),
        ),
        COUNTED,
    ),
    **dict.fromkeys(
        ("BatchNorm", "BatchNorm_v1", "_contrib_BatchNormWithReLU", "IdentityAttachKLSparseReg", "InstanceNorm"),
        FORGOTTEN,
    ),
    **dict.fromkeys(("_random_pdf_gamma", "_random_pdf_normal", "batch_dot"), ONE_WAY),
    **dict.fromkeys(("_linalg_det", "_linalg_slogdet"), RANKLESS),
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


@pytest.mark.parametrize("case", _rows())
def test_mxnet_infers_the_same_in_part(oracle: Oracle, case: Case) -> None:
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
                same = all(a == b for a, b in pairs)
                assert same or case.op in DIFFERENT, f"{side} of {shapes}: here and in MXNet {pairs}"
