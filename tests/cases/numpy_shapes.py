"""mx.np's operators that move elements, pad, stack and cut, and its constants."""

from .case import Arg, Case

GRADIENT = "MXNet 1.9.1 has no gradient of these modes."
ROTATED = "MXNet 1.9.1 rotates the gradient in the wrong direction."
NO_BOOL = "MXNet 1.9.1 makes no eye of bool."
ZERO = "MXNet 1.9.1 has zeros for the gradient of atleast_1d, atleast_2d and atleast_3d."
CASES = [
    *(
        Case("_np_roll", {"data": (2, 3)}, attrs, zero_size=False)
        for attrs in (
            {"shift": 1},
            {"shift": (1, 2), "axis": (0, 1)},
            {"shift": 1, "axis": (0, 1)},
            {"shift": -1, "axis": -1},
            {"shift": 2, "axis": None},
        )
    ),
    *(
        Case("_npi_rot90", {"data": (2, 3, 2)}, {"k": k, "axes": axes}, zero_size=False, oracle=k % 2 == 0, why=ROTATED)
        for k, axes in ((1, (0, 1)), (2, (1, 2)), (3, (1, 0)), (-1, (0, 1)))
    ),
    Case("transpose", {"data": (2, 3, 4)}, {"axes": None}, oracle=False, why="Only mx.np's name of it takes None."),
    Case("_np_moveaxis", {"a": (2, 3, 4)}, {"source": (0,), "destination": (2,)}),
    Case("_np_moveaxis", {"a": (2, 3, 4)}, {"source": (0, 1), "destination": (-1, 0)}),
    Case("_npi_broadcast_to", {"array": (2, 1)}, {"shape": (4, 2, 3)}, zero_size=False),
    Case("_npi_broadcast_to", {"array": (2, 1)}, {"shape": (-2, 3)}, zero_size=False),
    *(
        Case(f"_npi_{name}", {"arg0": one, "arg1": other}, {"num_args": 2}, zero_size=False)
        for name, one, other in (
            ("vstack", (3,), (2, 3)),
            ("hstack", (3,), (2,)),
            ("hstack", (2, 3), (2, 1)),
            ("dstack", (3,), (3,)),
            ("dstack", (2, 3, 1), (2, 3)),
            ("column_stack", (3,), (3,)),
            ("column_stack", (2, 3), (2,)),
        )
    ),
    *(
        Case(f"_np_{name}", {"arg0": (3,), "arg1": (2, 3)}, {"num_args": 2}, zero_size=False, oracle=False, why=ZERO)
        for name in ("atleast_1d", "atleast_2d", "atleast_3d")
    ),
    *(
        Case(
            "_npi_pad",
            {"data": (2, 3)},
            {"pad_width": ((1, 1), (0, 2)), "mode": mode, **more},
            zero_size=False,
            oracle=mode == "constant",
            why=GRADIENT if mode != "constant" else "",
        )
        for mode, more in (
            ("constant", {}),
            ("constant", {"constant_value": 2.5}),
            ("edge", {}),
            ("reflect", {"reflect_type": "even"}),
            ("symmetric", {}),
        )
    ),
    *(
        Case("_npi_pad", {"data": Arg((3, 4), 0, 2)}, {"pad_width": width, "mode": mode}, grad=False, zero_size=False)
        for width in (((2, 1), (0, 2)), ((1, 0), (3, 1)))
        for mode in ("edge", "reflect", "symmetric")
    ),
    *(
        Case("_np_diag", {"data": shape}, {"k": k}, zero_size=False)
        for shape, k in (((2,), 0), ((2,), 1), ((2,), -2), ((3, 4), 1), ((3, 4), -1), ((3, 4), 9))
    ),
    Case("_np_diagflat", {"data": (2, 2)}, {"k": 1}, zero_size=False),
    Case("_np_diagflat", {"data": (3,)}, {"k": -1}, zero_size=False),
    *(
        Case(name, {"data": shape}, attrs, zero_size=False)
        for name in ("_np_diagonal", "_np_trace")
        for shape, attrs in (
            ((3, 4), {"offset": 1}),
            ((2, 3, 4), {}),
            ((2, 3, 4), {"offset": 1, "axis1": 0, "axis2": 2}),
            ((2, 3, 4), {"offset": -1, "axis1": -1, "axis2": 1}),
            ((3, 4), {"offset": 9}),
        )
    ),
    *(
        Case("_npi_tril", {"data": shape}, {"k": k}, zero_size=False)
        for shape, k in (((3, 3), -1), ((2, 2, 3), 0), ((3,), 1), ((3, 4), 2))
    ),
    Case("_npi_full_like", {"a": (2, 3)}, {"fill_value": 2.5}, numeric=False),
    *(
        Case("_npi_full_like", {"a": (2, 3)}, {"fill_value": 2.5, "dtype": dtype}, ("float32",), grad=False)
        for dtype in ("float32", "float64", "float16", "uint8", "int8", "int32", "int64", "bool")
    ),
    *(
        Case("_npi_eye", {}, {"N": 2, **attrs}, ("float32",), grad=False)
        for attrs in ({}, {"M": 3, "k": 1}, {"M": 0}, {"k": -1, "M": None})
    ),
    *(
        Case(name, {}, {**attrs, "dtype": dtype}, ("float32",), grad=False, oracle=dtype != "bool", why=NO_BOOL)
        for name, attrs in (("_npi_eye", {"N": 2}), ("_npi_identity", {"shape": (2, 2)}))
        for dtype in ("float32", "float64", "float16", "uint8", "int8", "int32", "int64", "bool")
    ),
    *(
        Case(name, {"data": shape}, attrs, zero_size=False)
        for name, shape, attrs in (
            ("_npi_hsplit", (2, 3), {"indices": (0, 1)}),
            ("_npi_hsplit", (3,), {"indices": (), "sections": 3}),
            ("_npi_hsplit", (2, 3), {"indices": (), "sections": 3, "squeeze_axis": True, "axis": -1}),
            ("_npi_dsplit", (1, 2, 4), {"indices": (), "axis": 2, "sections": 2}),
            ("_npi_dsplit", (1, 2, 4), {"indices": (0, 3), "axis": 2}),
            ("_npi_dsplit", (1, 2, 2), {"indices": (), "axis": 2, "sections": 2, "squeeze_axis": True}),
        )
    ),
]
