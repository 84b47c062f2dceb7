"""What a Prop is told and tells: keyword arguments by its annotations, types that it fixes."""

from __future__ import annotations

import inspect
from typing import Any, Optional, Tuple  # noqa: UP035

import numpy as np
import pytest

import opbox as mx
from opbox.operator.instances import rebuilt


@mx.operator.register("typed_of_mine")
class TypedProp(mx.operator.CustomOpProp):
    """Tells its keyword arguments as the names of its arguments."""

    def __init__(
        self,
        text: Any = "",
        count: int = 0,
        limit: int | None = 3,
        ratios: tuple[float, ...] = (),
        sizes: list[int] = [],  # noqa: B006
        table: dict = {},  # type: ignore[type-arg]  # as users write  # noqa: B006
        flag: bool = False,
        old: Optional[int] = None,  # noqa: UP045
        older: Tuple[int, ...] = (),  # noqa: UP006
    ) -> None:
        super().__init__()
        self.values = [text, count, limit, ratios, sizes, table, flag, old, older]

    def list_arguments(self) -> list[str]:
        return [f"{number}: {value!r}" for number, value in enumerate(self.values)]


@pytest.mark.parametrize(
    ("keyword", "value", "expected"),
    [
        ("text", (1, 2), "'(1, 2)'"),
        ("count", "4", "4"),
        ("limit", None, "None"),
        ("limit", 5, "5"),
        ("ratios", (0.5, 2), "(0.5, 2)"),
        ("ratios", [[1, 2], [3, 4]], "([1, 2], [3, 4])"),
        ("ratios", 0.5, "(0.5,)"),
        ("sizes", (1, 2), "[1, 2]"),
        ("table", {"a": 1}, "{'a': 1}"),
        ("flag", "true", "True"),
        ("old", 7, "7"),
        ("older", (8, 9), "(8, 9)"),
    ],
)
def test_keywords_are_what_the_annotations_ask_for(keyword: str, value: Any, expected: str) -> None:
    names = mx.sym.Custom(op_type="typed_of_mine", name="op", **{keyword: value}).list_arguments()
    number = list(inspect.signature(TypedProp).parameters).index(keyword)
    assert names[number] == f"op_{number}: {expected}"


@pytest.mark.parametrize(
    ("keyword", "value", "kind"),
    [("count", None, "int"), ("flag", "yes", "bool"), ("sizes", "a b", r"list\[int\]"), ("limit", "x", r"int \| None")],
)
def test_a_keyword_of_another_kind(keyword: str, value: Any, kind: str) -> None:
    with pytest.raises(mx.MXNetError, match=f"parameter '{keyword}': expected {kind}, got '{value}'"):
        mx.sym.Custom(op_type="typed_of_mine", **{keyword: value})


@mx.operator.register("fixed_types_of_mine")
class FixedTypesProp(mx.operator.CustomOpProp):
    def list_arguments(self) -> list[str]:
        return ["data", "label"]

    def infer_shape(self, in_shape: list[Any]) -> Any:
        return [in_shape[0], in_shape[0]], [in_shape[0]]

    def infer_type(self, in_type: list[Any]) -> Any:
        return [np.float64, np.int32], [np.float64], []


def test_types_that_an_operator_fixes_need_not_be_given(engine: str) -> None:
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="fixed_types_of_mine", name="fixed")
    assert net.infer_type() == ([np.float64, np.int32], [np.float64], [])
    executor = net.simple_bind(mx.cpu(), data=(2,), grad_req="null")
    assert [array.dtype for array in executor.arg_arrays] == [np.float64, np.int32]


class WeighedByArrays(mx.operator.NumpyOp):
    """Made with one array, given another afterwards."""

    def __init__(self, weights: Any) -> None:
        super().__init__(True)
        self.weights = weights

    def forward(self, in_data: Any, out_data: Any) -> None:
        out_data[0][:] = in_data[0] * self.weights["each"] + self.more  # type: ignore[attr-defined]  # as users write


def test_arrays_among_what_an_instance_was_made_with(engine: str) -> None:
    weights = np.array([[0.1, np.inf], [3, 4]], "float16")
    instance = WeighedByArrays({"each": weights})
    instance.more = np.zeros((2, 0, 2), "int32").sum(axis=1) + 1
    out = instance(mx.sym.Variable("x"), name="weighed").eval(mx.cpu(), x=mx.nd.ones((2, 2)))[0]
    np.testing.assert_array_equal(out.asnumpy(), weights.astype("float32") + 1, strict=True)


def test_arrays_that_are_too_large_or_none() -> None:
    for value in (np.zeros(1 << 17), np.array([object()])):
        with pytest.raises(mx.MXNetError, match="WeighedByArrays: constructor arguments: expected plain values"):
            WeighedByArrays(value)(mx.sym.Variable("x"))
    with pytest.raises(mx.MXNetError, match="expected an array's type, shape and values"):
        rebuilt(WeighedByArrays, {"args": "[{'numpy.ndarray': 'float32', 'shape': (3,), 'values': [1]}]"})
