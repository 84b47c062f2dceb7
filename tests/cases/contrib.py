"""Operators of `contrib` that belong to no larger family, mixed precision, and old ones on elements of rows."""

from __future__ import annotations

from .case import Arg, Case

NUMBERS = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8")
WIDE = ("float32", "float64")
GPU = "MXNet has it on GPUs alone"
CPU_FLOAT32 = "MXNet's CPU build takes float32 alone, whose values the other types are compared with"
OTHER_GRADIENT = "its gradient is not its derivative"
ONE = {"dtype": "float32", "grad": False}
LOW, HIGH = Arg((1,), values=[-1.5], **ONE), Arg((1,), values=[1.0], **ONE)
QUANTIZED = Arg((2, 4), -128, 127, kind="int", dtype="int8")
NAN, INF = float("nan"), float("inf")


def _quantize(out_type: str, low: Arg, high: Arg) -> Case:
    inputs = {"data": Arg((3, 4), -2, 2), "min_range": low, "max_range": high}
    return Case("_contrib_quantize", inputs, {"out_type": out_type}, dtypes=("float32",), grad=False)


def _dequantize(dtype: str, values: list[int]) -> Case:
    inputs = {"data": Arg((len(values),), values=values, dtype=dtype), "min_range": LOW, "max_range": HIGH}
    return Case("_contrib_dequantize", inputs, {}, dtypes=("float32",), grad=False)


def _all_close(a: list[float], b: list[float], attrs: dict | None = None, **more) -> Case:
    inputs = {"a": Arg((len(a),), values=a), "b": Arg((len(b),), values=b)}
    return Case("_contrib_allclose", inputs, attrs or {}, grad=False, **more)


def _finite(*arrays: list[float]) -> Case:
    inputs = {f"data_{k}": Arg((len(values),), values=values) for k, values in enumerate(arrays)}
    return Case("multi_all_finite", inputs, {"num_arrays": len(arrays)}, grad=False)


CASES = [
    Case("_contrib_quadratic", {"data": (3, 4)}, {"a": 1.5, "b": 2, "c": 3}),
    Case(
        "_contrib_quadratic",
        {"data": Arg((3, 4), -3, 3)},
        {"a": 1.5, "b": 2.25, "c": -3},
        dtypes=("int32", "int64"),
        grad=False,
    ),
    Case("_contrib_quadratic", {"data": (2, 3)}),
    Case("_contrib_gradientmultiplier", {"data": (3, 4)}, {"scalar": -1.5}, numeric=False, why=OTHER_GRADIENT),
    Case(
        "_contrib_gradientmultiplier", {"data": (4,)}, {"scalar": 2}, dtypes=NUMBERS, numeric=False, why=OTHER_GRADIENT
    ),
    Case("_contrib_div_sqrt_dim", {"data": (3, 5)}),
    Case("_contrib_div_sqrt_dim", {"data": (2, 3, 9)}, dtypes=("float32", "int32", "int64", "int8"), grad=False),
    Case("_contrib_index_array", {"data": (2, 3)}, dtypes=NUMBERS, numeric=False, why="a position has no derivative"),
    Case("_contrib_index_array", {"data": (2, 3, 4)}, {"axes": (2, -3)}, numeric=False, why="no derivative"),
    Case("_contrib_index_array", {"data": (5,)}, {"axes": (0,)}, grad=False),
    Case(
        "_contrib_index_copy",
        {"old_tensor": (5, 3), "index_vector": Arg((2,), values=[4, 1], grad=False), "new_tensor": (2, 3)},
        zero_size=False,
    ),
    Case(
        "_contrib_index_copy",
        {"old_tensor": (4, 2, 2), "index_vector": Arg((3,), values=[2, 0, 3], dtype="int64"), "new_tensor": (3, 2, 2)},
        zero_size=False,
    ),
    Case(
        "_contrib_index_copy",
        {"old_tensor": (4, 2), "index_vector": Arg((3,), values=[2, 0, 2], dtype="int32"), "new_tensor": (3, 2)},
        dtypes=("float32", "int32", "int64"),
        zero_size=False,
        grad=False,
        why="of two rows at one position the last one is there",
    ),
    _all_close([1, 2, 3], [1, 2, 3]),
    _all_close([1, 2, 3], [1, 2.5, 3]),
    _all_close([1, 2, 3], [1, 2.5, 3], {"rtol": 0.25, "atol": 0}),
    _all_close([1, 0, 3], [1, 0.5, 3], {"rtol": 0, "atol": 0.75}),
    _all_close([1, NAN, INF], [1, NAN, INF], dtypes=WIDE),
    _all_close([1, NAN], [1, NAN], {"equal_nan": False}, dtypes=WIDE),
    _all_close([1, 2, 3], [1, 2, 4], dtypes=("int32", "int64")),
    *[
        Case("amp_cast", {"data": (3, 4)}, {"dtype": dtype}, dtypes=("float32", "int32", "float16"), grad=False)
        for dtype in ("float16", "float32")
    ],
    Case("amp_cast", {"data": (3, 4)}, {"dtype": "int8"}, dtypes=("int32", "uint8"), grad=False),
    Case(
        "amp_cast",
        {"data": (2, 5)},
        {"dtype": "float32"},
        dtypes=("float64",),
        grad=False,
        oracle=False,
        why="MXNet leaves it in float64, as inference shows, and then fails: its oneDNN does not have the type.",
    ),
    Case(
        "amp_cast", {"data": (2, 3)}, {"dtype": "float16"}, dtypes=("float32",), numeric=False, why="rounds to float16"
    ),
    Case(
        "amp_multicast",
        {"a": (2, 3), "b": Arg((2, 3), dtype="float16"), "c": Arg((2, 3), dtype="int32")},
        {"num_outputs": 3},
        dtypes=("float32",),
        oracle=False,
        why="MXNet's build cannot run casts of several types; test_mixed_precision compares the types with its rule",
    ),
    Case(
        "amp_multicast",
        {"a": (2, 3), "b": Arg((2,), dtype="float16")},
        {"num_outputs": 2, "cast_narrow": True},
        dtypes=("float32", "float16"),
        oracle=False,
        why="MXNet's build cannot run it",
    ),
    Case(
        "amp_multicast",
        {"a": (2, 3), "b": Arg((2, 3), dtype="int8")},
        {"num_outputs": 2},
        dtypes=("float32", "int32"),
        grad=False,
    ),
    *[
        Case("all_finite", {"data": Arg((3,), values=values)}, attrs, grad=False)
        for values, attrs in (([1, 2, 3], {}), ([1, INF, 2], {}), ([1, NAN, 2], {"init_output": True}))
    ],
    _finite([1, 2], [3]),
    _finite([1, 2], [3, -INF], [1]),
    _quantize("int8", LOW, HIGH),
    _quantize("uint8", LOW, HIGH),
    _quantize("uint8", Arg((1,), values=[0], **ONE), Arg((1,), values=[2], **ONE)),
    _dequantize("int8", [-128, -127, -5, 0, 5, 127]),
    _dequantize("uint8", [0, 1, 5, 128, 255]),
    Case("_scatter_elemwise_div", {"lhs": (3, 4), "rhs": Arg((3, 4), 0.5, 2)}),
    Case("_scatter_elemwise_div", {"lhs": (3, 4), "rhs": Arg((3, 4), 1, 4)}, dtypes=("int32", "int64"), grad=False),
    *[
        Case(op, {"data": (3, 4)}, {"scalar": 2.5}, dtypes=NUMBERS[:5])
        for op in ("_scatter_plus_scalar", "_scatter_minus_scalar")
    ],
    *[
        Case(
            "_contrib_boolean_mask",
            {"data": (4, 3), "index": Arg((4,), values=mask, dtype=dtype)},
            dtypes=("float32", "float16", "int32", "uint8"),
            grad=False,
            zero_size=False,
            out_shapes=((sum(1 for number in mask if number), 3),),
        )
        for mask, dtype in (([0, 1, 2, 0], "float32"), ([1, 0, 1, 1], "int32"))
    ],
    Case("_set_value", {}, {"src": 2.5}, dtypes=("float32",), grad=False, oracle=False, out_shapes=((2, 3),)),
    Case("_copyto", {"data": (3, 4)}, oracle=False, why="MXNet has it on arrays alone"),
    Case(
        "_onehot_encode",
        {"lhs": Arg((4,), values=[1, 0, 5, -1]), "rhs": (4, 3)},
        grad=False,
        oracle=False,
        why="MXNet has it on arrays alone; test_old_element_operators compares",
    ),
    Case(
        "fill_element_0index",
        {"lhs": (3, 4), "mhs": (3,), "rhs": Arg((3,), values=[1, 0, 3])},
        grad=False,
        oracle=False,
        why="MXNet has it on arrays alone; test_old_element_operators compares",
    ),
    Case("_contrib_fft", {"data": (3, 5)}, dtypes=("float32",), oracle=False, why=GPU),
    Case("_contrib_fft", {"data": (2, 2, 3, 4)}, {"compute_size": 16}, dtypes=("float32",), oracle=False, why=GPU),
    Case("_contrib_ifft", {"data": (3, 10)}, dtypes=("float32",), oracle=False, why=GPU),
    Case("_contrib_ifft", {"data": (2, 2, 3, 8)}, {"compute_size": 16}, dtypes=("float32",), oracle=False, why=GPU),
    Case(
        "_contrib_count_sketch",
        {
            "data": (3, 4),
            "h": Arg((1, 4), values=[[0, 2, 0, 1]], grad=False),
            "s": Arg((1, 4), values=[[1, -1, 1, -1]], grad=False),
        },
        {"out_dim": 3, "processing_batch_size": 16},
        dtypes=("float32",),
        oracle=False,
        why=GPU,
    ),
    Case("_contrib_interleaved_matmul_selfatt_qk", {"queries_keys_values": (3, 2, 24)}, {"heads": 2}, why=CPU_FLOAT32),
    Case("_contrib_interleaved_matmul_selfatt_qk", {"queries_keys_values": (2, 1, 9)}, {"heads": 1}),
    Case(
        "_contrib_interleaved_matmul_selfatt_valatt",
        {"queries_keys_values": (3, 2, 24), "attention": (4, 3, 3)},
        {"heads": 2},
    ),
    Case("_contrib_interleaved_matmul_encdec_qk", {"queries": (3, 2, 8), "keys_values": (4, 2, 16)}, {"heads": 2}),
    Case(
        "_contrib_interleaved_matmul_encdec_valatt",
        {"keys_values": (5, 2, 16), "attention": (4, 3, 5)},
        {"heads": 2},
        zero_size=False,
    ),
]
