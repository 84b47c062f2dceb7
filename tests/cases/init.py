"""_zeros, _ones, _full, _eye, _arange, _linspace and the _like forms."""

from .case import Case

ALL = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8")
ONE = ("float32",)

CASES = [
    *(
        Case(name, {}, {"shape": (2, 3), "dtype": dtype}, dtypes=ONE, grad=False)
        for name in ("_zeros", "_ones")
        for dtype in ("float32", "float16", "int32", "bool")
    ),
    Case("_full", {}, {"shape": (2, 3), "value": 2.5}, dtypes=ONE, grad=False),
    Case("_full", {}, {"shape": (4,), "value": -7, "dtype": "int64"}, dtypes=ONE, grad=False),
    Case("_eye", {}, {"N": 3}, dtypes=ONE, grad=False),
    Case("_eye", {}, {"N": 3, "M": 5, "k": 1, "dtype": "int32"}, dtypes=ONE, grad=False),
    Case("_eye", {}, {"N": 4, "M": 2, "k": -1}, dtypes=ONE, grad=False),
    Case("_eye", {}, {"N": 2, "M": 2, "k": 5}, dtypes=ONE, grad=False),
    Case("_arange", {}, {"start": 5}, dtypes=ONE, grad=False),
    Case("_arange", {}, {"start": 1, "stop": 9, "step": 2, "repeat": 3}, dtypes=ONE, grad=False),
    Case("_arange", {}, {"start": 4, "stop": -1, "step": -1.5, "dtype": "float64"}, dtypes=ONE, grad=False),
    Case("_arange", {}, {"start": 2, "stop": 8, "dtype": "int32"}, dtypes=ONE, grad=False),
    Case("_arange", {}, {"start": 4, "stop": -1, "step": -1.5, "dtype": "int64"}, dtypes=ONE, grad=False),
    Case("_linspace", {}, {"start": -1, "stop": 2, "num": 7}, dtypes=ONE, grad=False),
    Case("_linspace", {}, {"start": 0, "stop": 1, "num": 4, "endpoint": False}, dtypes=ONE, grad=False),
    Case("_linspace", {}, {"start": 3, "stop": 9, "num": 1}, dtypes=ONE, grad=False),
    Case("zeros_like", {"data": (2, 3)}, dtypes=ALL),
    Case("ones_like", {"data": (2, 3)}, dtypes=ALL),
    Case("_contrib_arange_like", {"data": (2, 3)}, {"start": 1, "step": 0.5}, dtypes=ONE),
    Case("_contrib_arange_like", {"data": (4, 3)}, {"axis": 0, "repeat": 2}, dtypes=ONE, zero_size=False),
    Case("_contrib_arange_like", {"data": (5, 3)}, {"axis": 0, "repeat": 2}, dtypes=ONE, zero_size=False),
]
