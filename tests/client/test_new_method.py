"""A new method of NDArray and Symbol takes its operator's attribute, or the operator's name in methods.py: then the
catalogue, the stubs and both classes have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.added_source import run_with

OPERATOR = '''
"""test_tripled: three times the data."""

from opbox_ops import register
from opbox_ops.infer import all_same_float
from opbox_ops.params import NoParams

op = register("test_tripled", NoParams, doc="Three times the data.").set_attr("TMethods", METHODS)


@op.infer_shape
def _(p, ins, outs):
    outs.merge(0, ins.merge(0, outs[0]))


op.infer_type(all_same_float)


@op.compute()
def _(p, ctx, inputs, outputs):
    ctx.xp.multiply(inputs[0], 3, out=outputs[0])
'''
OF_A_PLUGIN = """
import json
from pathlib import Path
import opbox as mx
from opbox_service.engine import load_plugin

load_plugin(Path(PLUGIN))
mx.refresh_operators()
x, y = mx.nd.array([1, 2]), mx.sym.Variable("y")
executor = y.test_tripled(name="tripled").simple_bind(mx.cpu(), grad_req="null", y=(2,))
print(json.dumps([
    x.test_tripled().asnumpy().tolist(), executor.forward(y=x)[0].asnumpy().tolist(), x.asnumpy().tolist(),
    mx.nd.NDArray.test_tripled.__doc__,
]))
"""
OF_A_NAME = """
import json
import opbox as mx
from opbox_service import schema

(catalogue, array, symbol) = [
    next(text for path, text in schema.files().items() if str(path).endswith(end))
    for end in ("operators.json", "ndarray/fluent.pyi", "symbol/fluent.pyi")
]
methods = next(op.get("methods") for op in json.loads(catalogue)["operators"] if op["name"] == "erf")
stubs = ["def erf(" in array, "def erf(" in symbol]
# The classes have what the catalogue says.
print(json.dumps([methods, stubs, hasattr(mx.nd.NDArray, "erf"), hasattr(mx.sym.Symbol, "erf")]))
"""


def plugin(folder: Path, methods: tuple[str, ...]) -> Path:
    path = folder / "tripled.py"
    path.write_text(OPERATOR.replace("METHODS", repr(methods)))
    return path


def test_an_operators_attribute_is_a_method_of_both(tmp_path: Path) -> None:
    path = plugin(tmp_path, ("test_tripled",))
    printed = run_with({}, {}, f"PLUGIN = {str(path)!r}\n{OF_A_PLUGIN}")
    of_array, of_symbol, untouched, doc = json.loads(printed)
    assert of_array == of_symbol == [3, 6]
    assert untouched == [1, 2]
    assert doc == "`test_tripled` of this: Three times the data."


def test_without_the_attribute_there_is_no_method(tmp_path: Path) -> None:
    path = plugin(tmp_path, ())
    with pytest.raises(AssertionError, match=r"AttributeError: .*test_tripled"):
        run_with({}, {}, f"PLUGIN = {str(path)!r}\n{OF_A_PLUGIN}")


def test_a_method_of_the_class_itself_stays(tmp_path: Path) -> None:
    path = plugin(tmp_path, ("test_tripled", "asnumpy"))
    printed = run_with({}, {}, f"PLUGIN = {str(path)!r}\n{OF_A_PLUGIN}")
    assert json.loads(printed)[:3] == [[3, 6], [3, 6], [1, 2]]


def test_an_operators_name_in_the_table_is_a_method_of_both() -> None:
    added = run_with({"opbox_ops.methods": '\nNAMES |= {"erf"}\n'}, {}, OF_A_NAME)
    assert json.loads(added) == [["erf"], [True, True], True, True]


def test_without_the_name_there_is_no_method() -> None:
    methods, *there = json.loads(run_with({}, {}, OF_A_NAME))
    assert not methods
    assert there == [[False, False], False, False]
