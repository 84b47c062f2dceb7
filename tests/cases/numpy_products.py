"""mx.np's products of arrays."""

from .case import Arg, Case

SUMS = {"rtol": 1e-4, "why": "Sums of products, added up in another order."}


def _einsum(subscripts, *shapes, **more):
    inputs = {f"arg{i}": shape for i, shape in enumerate(shapes)}
    return Case("_npi_einsum", inputs, {"num_args": len(shapes), "subscripts": subscripts}, **{**SUMS, **more})


CASES = [
    Case("_npi_matmul", {"a": a, "b": b}, zero_size=len(a) > 1 and len(b) == 2, **SUMS)
    for a, b in (
        ((2, 3), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((3,), (3,)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
    )
]
CASES += [
    Case(
        "_npi_matmul",
        {"a": (2, 1, 2, 3), "b": (4, 3, 2)},
        oracle=False,
        zero_size=False,
        rtol=1e-4,
        why="MXNet 1.9.1 sums the gradient of a over the wrong axis.",
    )
]
CASES += [
    Case(
        "_npi_tensordot",
        {"a": (2, 3, 4), "b": (4, 3, 5)},
        {"a_axes_summed": a, "b_axes_summed": b},
        zero_size=False,
        **SUMS,
    )
    for a, b in (((2,), (0,)), ((1, 2), (1, 0)), ((-1,), (0,)))
]
CASES += [
    Case("_npi_tensordot_int_axes", {"a": (2, 3), "b": (2, 3)}, {"axes": 2}, zero_size=False, **SUMS),
    Case("_npi_tensordot_int_axes", {"a": (2, 3), "b": (3, 4)}, {"axes": 1}, **SUMS),
    Case("_npi_tensordot_int_axes", {"a": (2,), "b": (3,)}, {"axes": 0}, **SUMS),
    _einsum("ij,jk->ik", (2, 3), (3, 4)),
    _einsum("bhqk,bhkd->bqhd", (2, 3, 4, 5), (2, 3, 5, 2), zero_size=False),
    _einsum("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    _einsum("ii", (3, 3), zero_size=False),
    _einsum("ii->i", (3, 3), zero_size=False),
    _einsum("ba", (2, 3)),
    _einsum("...ij,...jk", (2, 2, 3), (3, 4), zero_size=False),
    _einsum("ij->j", (2, 3)),
    _einsum("ij,ij->", (2, 3), (2, 3), zero_size=False),
    _einsum("i,j->ij", (2,), (3,)),
    _einsum("ij,kl->il", (2, 3), (4, 2)),
    _einsum("iij,j->i", (2, 2, 3), (3,), zero_size=False),
    Case(
        "_npi_einsum",
        {"arg0": Arg((2, 3), kind="int"), "arg1": Arg((3, 2), kind="int")},
        {"num_args": 2, "subscripts": "ij,jk"},
        dtypes=("int32", "int64"),
        grad=False,
    ),
]
