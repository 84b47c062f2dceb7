"""Shape rules with unknowns: what follows from part of the shapes, in both directions.

-1 is an unknown dimension, None an unknown shape.
"""

from __future__ import annotations

from typing import Any

import pytest

from opbox_ops import registry
from opbox_ops.infer import ShapeList
from opbox_protocol.errors import ShapeError

U = -1

ROWS: list[tuple[str, dict[str, Any], list[Any], list[Any], list[Any], list[Any]]] = [
    # operator, attributes, known inputs, known outputs -> inputs, outputs
    ("Reshape", {"shape": (0, -1)}, [(U, 3, 4)], [None], [(U, 3, 4)], [(U, U)]),
    ("Reshape", {"shape": (0, -1)}, [(U, 3, 4)], [(5, U)], [(5, 3, 4)], [(5, 12)]),
    ("Reshape", {"shape": (-1, 6)}, [(U, 3)], [(4, 6)], [(8, 3)], [(4, 6)]),
    ("Reshape", {"shape": (4, 6)}, [None], [None], [None], [(4, 6)]),
    ("Reshape", {"shape": (4, 6)}, [(U, 3)], [None], [(8, 3)], [(4, 6)]),
    ("Reshape", {"shape": (-3, 0)}, [(U, 3, 4)], [None], [(U, 3, 4)], [(U, 4)]),
    ("Reshape", {"shape": (-1, 0), "reverse": True}, [(U, 5, 4)], [None], [(U, 5, 4)], [(U, 4)]),
    ("Reshape", {"shape": (0, 0)}, [(0, 3)], [None], [(0, 3)], [(0, 3)]),
    ("Reshape", {"shape": (0, -1)}, [(0, 3)], [None], [(0, 3)], [(0, 0)]),
    ("expand_dims", {"axis": 1}, [None], [(2, 1, 3)], [(2, 3)], [(2, 1, 3)]),
    ("expand_dims", {"axis": -1}, [(U, 3)], [(2, U, U)], [(2, 3)], [(2, 3, 1)]),
    ("squeeze", {"axis": 1}, [(U, U, 3)], [(2, U)], [(2, 1, 3)], [(2, 3)]),
    ("squeeze", {}, [(U, 1)], [None], [(U, 1)], [None]),
    ("reshape_like", {}, [(6,), None], [(2, 3)], [(6,), (2, 3)], [(2, 3)]),
    ("transpose", {}, [None], [(2, 3)], [(3, 2)], [(2, 3)]),
    ("transpose", {"axes": (2, 0, 1)}, [(U, 3, 4)], [(4, 2, U)], [(2, 3, 4)], [(4, 2, 3)]),
    ("SwapAxis", {"dim1": 0, "dim2": 2}, [None], [(2, 3, 4)], [(4, 3, 2)], [(2, 3, 4)]),
    ("Concat", {"num_args": 2}, [(2, 3), (U, U)], [(U, 7)], [(2, 3), (2, 4)], [(2, 7)]),
    ("Concat", {"num_args": 2}, [None, (2, 3)], [None], [(2, U), (2, 3)], [(2, U)]),
    ("Concat", {"num_args": 2, "dim": 0}, [None, None], [(4, 3)], [(U, 3), (U, 3)], [(4, 3)]),
    ("stack", {"num_args": 2, "axis": 1}, [None, None], [(4, U, 3)], [(4, 3), (4, 3)], [(4, 2, 3)]),
    ("stack", {"num_args": 2}, [(U, 3), (4, U)], [None], [(4, 3), (4, 3)], [(2, 4, 3)]),
    ("SliceChannel", {"num_outputs": 2}, [(U, 6)], [(4, U), None], [(4, 6)], [(4, 3), (4, 3)]),
    ("SliceChannel", {"num_outputs": 2}, [None], [None, (4, 3)], [(4, 6)], [(4, 3), (4, 3)]),
    (
        "SliceChannel",
        {"num_outputs": 2, "squeeze_axis": True},
        [None],
        [(4, U), (U, 3)],
        [(4, 2, 3)],
        [(4, 3), (4, 3)],
    ),
    ("slice", {"begin": (1,), "end": (3,)}, [(5, U)], [(U, 7)], [(5, 7)], [(2, 7)]),
    ("slice", {"begin": (0,), "end": (2,)}, [(U, 3)], [None], [(U, 3)], [(U, 3)]),
    ("slice_axis", {"axis": 0, "begin": 0, "end": 2}, [(4, U)], [(U, 3)], [(4, 3)], [(2, 3)]),
    ("slice_like", {"axes": (-2,)}, [(2, 3, 4, 5), (1, 2, 3)], [None], [(2, 3, 4, 5), (1, 2, 3)], [(2, 3, 3, 5)]),
    ("slice_like", {"axes": (-3,)}, [(4, 1, 3), (2,)], [None], [(4, 1, 3), (2,)], [(2, 1, 3)]),
    ("slice_like", {"axes": (0,)}, [(4, U), (2, 9)], [(U, 3)], [(4, 3), (2, 9)], [(2, 3)]),
    ("_slice_assign", {"begin": (1,), "end": (3,)}, [None, None], [(5, 4)], [(5, 4), (2, 4)], [(5, 4)]),
    ("tile", {"reps": (2, 3)}, [(U, U)], [(4, 9)], [(2, 3)], [(4, 9)]),
    ("repeat", {"repeats": 2, "axis": 1}, [(U, U)], [(4, 6)], [(4, 3)], [(4, 6)]),
    ("reverse", {"axis": (0,)}, [None], [(4, 6)], [(4, 6)], [(4, 6)]),
    ("Pad", {"mode": "edge", "pad_width": (0, 0, 1, 2)}, [(U, U)], [(4, 9)], [(4, 6)], [(4, 9)]),
    ("depth_to_space", {"block_size": 2}, [None], [(1, 2, 4, 6)], [(1, 8, 2, 3)], [(1, 2, 4, 6)]),
    ("space_to_depth", {"block_size": 2}, [None], [(1, 8, 2, 3)], [(1, 2, 4, 6)], [(1, 8, 2, 3)]),
    ("shape_array", {}, [(U, 3)], [None], [(U, 3)], [(2,)]),
    ("size_array", {}, [None], [None], [None], [(1,)]),
    ("Embedding", {"input_dim": 9, "output_dim": 4}, [(2, U), None], [None], [(2, U), (9, 4)], [(2, U, 4)]),
    ("Embedding", {"input_dim": 9, "output_dim": 4}, [None, None], [(2, 3, 4)], [(2, 3), (9, 4)], [(2, 3, 4)]),
    ("take", {"axis": 1}, [(U, 5), (U,)], [(2, 3)], [(2, 5), (3,)], [(2, 3)]),
    ("one_hot", {"depth": 4}, [None], [(2, U)], [(2,)], [(2, 4)]),
    ("pick", {"axis": 1}, [(U, 5), (3,)], [None], [(3, 5), (3,)], [(3,)]),
    ("batch_take", {}, [None, None], [(3,)], [(3, U), (3,)], [(3,)]),
    ("gather_nd", {}, [(2, 3, 4), (2, U)], [None], [(2, 3, 4), (2, U)], [(U, 4)]),
    ("scatter_nd", {"shape": (2, 3, 4)}, [None, (2, 5)], [None], [(5, 4), (2, 5)], [(2, 3, 4)]),
    ("topk", {"k": 2, "ret_typ": "both"}, [(U, 5)], [None, None], [(U, 5)], [(U, 2), (U, 2)]),
    *(
        ("LeakyReLU", {"act_type": "rrelu"}, ins, outs, [(2, 3)], [(2, 3), (2, 3)])
        for ins, outs in (([(2, 3)], [None, None]), ([None], [(2, 3), None]), ([(U, 3)], [None, (2, U)]))
    ),
    ("sort", {}, [None], [(2, 5), None], [(2, 5)], [(2, 5), (2, 5)]),
    ("dot", {}, [(U, 4), (U, 5)], [(3, U)], [(3, 4), (4, 5)], [(3, 5)]),
    ("dot", {"transpose_b": True}, [(3, U), (U, 4)], [(U, 5)], [(3, 4), (5, 4)], [(3, 5)]),
    ("batch_dot", {}, [(2, U, 4), None], [(U, 3, 5)], [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)]),
    ("_zeros", {"shape": (0, 3)}, [], [None], [], [(U, 3)]),
    ("_zeros", {"shape": (0, 3)}, [], [(2, U)], [], [(2, 3)]),
    ("_full", {"value": 1}, [], [(2, 3)], [], [(2, 3)]),
    ("_random_uniform", {"shape": (0, 3)}, [], [(2, U)], [], [(2, 3)]),
    ("_arange", {"start": 0, "infer_range": True}, [], [(7,)], [], [(7,)]),
    ("_arange", {"start": 5, "stop": 2, "step": -2, "repeat": 2}, [], [None], [], [(4,)]),
    ("_eye", {"N": 3}, [], [None], [], [(3, 3)]),
    ("_sample_normal", {"shape": (4,)}, [None, (2, 3)], [None], [(2, 3), (2, 3)], [(2, 3, 4)]),
    ("_sample_normal", {"shape": (4,)}, [None, None], [(2, 4)], [(2,), (2,)], [(2, 4)]),
    ("sgd_mom_update", {"lr": 1}, [None, (2, 3), None], [None], [(2, 3)] * 3, [(2, 3)]),
]


@pytest.mark.parametrize(("name", "attrs", "ins", "outs", "want_ins", "want_outs"), ROWS)
def test_what_follows(
    name: str, attrs: dict[str, Any], ins: list[Any], outs: list[Any], want_ins: list[Any], want_outs: list[Any]
) -> None:
    op = registry.get(name)
    params = op.parse(attrs)
    found_ins, found_outs = ShapeList(ins, "input"), ShapeList(outs, "output")
    assert op.shape_rule is not None
    for _ in range(2):  # a pass calls a rule until nothing changes
        op.shape_rule(params, found_ins, found_outs)
    assert list(found_ins) == want_ins
    assert list(found_outs) == want_outs


CONTRADICTIONS: list[tuple[str, dict[str, Any], list[Any], list[Any], str]] = [
    # operator, attributes, known inputs, known outputs, error
    ("Concat", {"num_args": 2}, [(2, 3), (2, 4)], [(2, 8)], "expected (2, 7), got (2, 8)"),
    ("Concat", {"num_args": 2}, [(2, 3), (2, 4)], [(3, U)], "expected (2, ?), got (3, ?)"),
    ("Concat", {"num_args": 2}, [(2, 3), (2, 4)], [(2, 7, 1)], "expected (2, ?), got (2, 7, 1)"),
    ("Concat", {"num_args": 2}, [(2, 9), (2, U)], [(2, 8)], "dim 1: expected inputs of at most 8 in all, got 9"),
    ("Concat", {"num_args": 3, "dim": 0}, [(2,), (U,), (7,)], [(8,)], "expected inputs of at most 8 in all, got 9"),
    ("stack", {"num_args": 2}, [(3,), (3,)], [(3, 3)], "expected (2, ?), got (3, 3)"),
    ("LeakyReLU", {"act_type": "rrelu"}, [(2, 3)], [None, (3, 3)], "expected (2, 3), got (3, 3)"),
]


@pytest.mark.parametrize(("name", "attrs", "ins", "outs", "message"), CONTRADICTIONS)
def test_what_contradicts(name: str, attrs: dict[str, Any], ins: list[Any], outs: list[Any], message: str) -> None:
    op = registry.get(name)
    assert op.shape_rule is not None
    with pytest.raises(ShapeError) as refusal:
        op.shape_rule(op.parse(attrs), ShapeList(ins, "input"), ShapeList(outs, "output"))
    assert str(refusal.value).endswith(message)
