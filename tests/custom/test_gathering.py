"""What real operators refer to reaches a server as it is here: each case gives the same in process and over HTTP."""

from __future__ import annotations

import contextlib
import linecache
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox.operator import modules
from opbox.operator.bundle import run
from opbox.operator.gather import gather
from tests.contract.live import Live

OPERATOR = """
class Op(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * float(VALUE))

@mx.operator.register("gathered")
class Prop(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Op()
"""
SQUARE = """
class Square(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        if in_data[0].shape == (3,):
            raise ValueError("three")
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

@mx.operator.register("square_within")
class SquareProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Square()
"""
# (what stands before the operator, what it multiplies by, that value)
REFERENCES = {
    "an item that is set later": ("TABLE = {}\nTABLE['a'] = lambda: 3\n", "TABLE['a']()", 3),
    "a list that functions are put on": ("STEPS = []\nSTEPS.append(lambda: 4)\n", "STEPS[0]()", 4),
    "a registry filled by a decorator": (
        "TABLE = {}\ndef add(f):\n    TABLE[f.__name__] = f\n    return f\n@add\ndef five():\n    return 5\n",
        "TABLE['five']()",
        5,
    ),
    "an attribute set on a class": ("class Settings:\n    k = 1\nSettings.k = 6\n", "Settings.k", 6),
    "an array that is changed": ("ANCHORS = np.zeros(3)\nANCHORS[1] = 7\n", "ANCHORS.sum()", 7),
    "an array that a function changes": ("A = np.zeros(2)\ndef change():\n    A[0] = 8\nchange()\n", "A[0]", 8),
    "parsed arguments": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--k', type=int)\n"
        "args = parser.parse_args(['--k', '9'])\nargs.k += 1\n",
        "args.k",
        10,
    ),
    "a module that may not be there": (
        "try:\n    import no_such_module_here as xp\nexcept ImportError:\n    import numpy as xp\n",
        "xp.float32(2)",
        2,
    ),
    "a module that is imported in a function": ("def f():\n    import colorsys\n    return 3\n", "f()", 3),
    "a decorator of another module": ("import functools\n@functools.lru_cache\ndef f():\n    return 4\n", "f()", 4),
    "two statements in a line": ("a = object(); b = [object(), object()]; c = 7\n", "len(b) + (a not in b)", 3),
    "a page break": ("\f\ndef f():\n    return len('\x0b') + 4\n", "f()", 5),
    "names made in branches": ("if True:\n    def f():\n        return 6\nelse:\n    f = None\n", "f()", 6),
    "an enum, a dataclass and a partial": (
        "import dataclasses, enum, functools\nclass E(enum.Enum):\n    A = 2\n@dataclasses.dataclass\nclass D:\n"
        "    k: int\nCONF = D(3)\nPLUS = functools.partial(max, 1)\n",
        "E.A.value * CONF.k + PLUS(0)",
        7,
    ),
}


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "gathered_here") -> Any:
    """The text as an imported module."""
    path = folder / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("import numpy as np\nimport opbox as mx\n" + textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(folder))
    for known in [module for module in sys.modules if module.split(".")[0] == name.split(".")[0]]:
        monkeypatch.delitem(sys.modules, known)
    return __import__(name, fromlist=["Prop"])


def called(op_type: str = "gathered", shape: tuple[int, ...] = (1,)) -> Any:
    return (mx.nd.Custom(mx.nd.ones(shape) * 2, op_type=op_type) / 2).asnumpy().tolist()


@pytest.fixture
def bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that a test names are forgotten afterwards."""
    monkeypatch.setattr(modules, "_named", {})


@pytest.mark.parametrize("case", REFERENCES)
def test_what_an_operator_refers_to(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    before, value, expected = REFERENCES[case]
    written(tmp_path, monkeypatch, before + OPERATOR.replace("VALUE", value))
    assert called() == [expected]


def test_classes_of_a_loop_are_told_apart(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prop = "@mx.operator.register(f'gathered_{k}')\nclass Prop(mx.operator.CustomOpProp):\n    k = k\n"
    make = "    def create_operator(self, ctx, shapes, dtypes):\n        return Op(self.k)\n"
    text = OPERATOR.split("@")[0].replace("VALUE", "self.k") + "    def __init__(self, k):\n        self.k = k\n"
    written(tmp_path, monkeypatch, text + "for k in (3, 5):\n" + textwrap.indent(prop + make, "    "))
    assert [called("gathered_3"), called("gathered_5"), called("gathered_3")] == [[3], [5], [3]]


def test_a_class_that_a_call_made(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OPERATOR.replace("VALUE", "4") + "Sub = type('Sub', (Prop,), {})\nmx.operator.register('made')(Sub)\n"
    written(tmp_path, monkeypatch, text)
    assert called("made") == [4]


def test_a_decorated_method(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper's file is not the operator's."""
    method = "    @contextlib.contextmanager\n    def f(self):\n        yield 5\n"
    text = OPERATOR.replace("(mx.operator.CustomOp):\n", f"(mx.operator.CustomOp):\n{method}")
    text = text.replace("self.assign", "with self.f() as k: self.assign").replace("VALUE", "k")
    written(tmp_path, monkeypatch, "import contextlib\n" + text)
    assert called() == [5]


def test_a_name_that_means_two_things(
    http: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundles: None
) -> None:
    (tmp_path / "starred_of_mine.py").write_text("EPS = 100.0\ndef scaled():\n    return EPS\n")
    text = "from starred_of_mine import *\nEPS = 1.0\n" + OPERATOR.replace("VALUE", "scaled() + EPS")
    monkeypatch.delitem(sys.modules, "starred_of_mine", raising=False)
    written(tmp_path, monkeypatch, text)
    with pytest.raises(mx.operator.SourceError, match=r"'EPS' is one thing in gathered_here.py and another in starred"):
        called()
    mx.operator.bundle(tmp_path / "starred_of_mine.py")
    assert called() == [101]


def test_relative_imports(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundles: None) -> None:
    folder = tmp_path / "relative_of_mine"
    (folder / "deep").mkdir(parents=True)
    for name, text in (("__init__", ""), ("near", "K = 2\n"), ("deep/__init__", ""), ("deep/far", "L = 30\n")):
        (folder / f"{name}.py").write_text(text)
    imports = "from .near import (\n    K,\n)\nfrom .deep import far; from . import near as n\n"
    text = OPERATOR.replace("        self.assign", "        from .deep.far import L as M\n        self.assign")
    written(
        tmp_path,
        monkeypatch,
        imports + text.replace("VALUE", "K + far.L + n.K * 100 + M * 100"),
        "relative_of_mine.ops",
    )
    if engine == "http":
        with pytest.raises(mx.operator.SourceError, match="the folder of its package 'relative_of_mine' with mx"):
            called()
    mx.operator.bundle(folder)
    assert called() == [3232]


def test_an_operator_that_calls_another(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = "NAME = 'square_within'\ndef apply(x):\n    return mx.nd.Custom(x, op_type=NAME)\n"
    text = SQUARE + call + OPERATOR.replace("in_data[0] * float(VALUE)", "apply(in_data[0])")
    written(tmp_path, monkeypatch, text)
    assert [called(), called()] == [[2], [2]]
    with pytest.raises(mx.errors.UserCodeError, match=r"forward: ValueError: three \(gathered_here.py:7\)") as caught:
        called(shape=(3,))
    assert "return mx.nd.Custom(x, op_type=NAME)" in caught.value.detail["traceback"]
    executor = mx.sym.Custom(mx.sym.Variable("x"), op_type="gathered").simple_bind(mx.cpu(), x=(2,), grad_req="null")
    executor.arg_dict["x"][:] = 3
    np.testing.assert_array_equal(executor.forward()[0].asnumpy(), [9, 9])


def test_an_operator_that_calls_one_that_is_not_there(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = OPERATOR.replace("in_data[0] * float(VALUE)", "mx.nd.Custom(in_data[0], op_type='never_registered')")
    written(tmp_path, monkeypatch, call)
    with pytest.raises(mx.errors.UserCodeError, match="op_type 'never_registered' is not registered"):
        called()


FACTORY = """
def make(name, k, power):
    scale = [k]

    def times(x):
        return x * scale[0] if k else base(x)

    class Op(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            if in_data[0].shape == (3,):
                raise ValueError(name)
            self.assign(out_data[0], req[0], np.power(times(in_data[0].asnumpy()) / 2, power) * 2)

    @mx.operator.register(name)
    class Prop(mx.operator.CustomOpProp):
        def __init__(self):
            super().__init__(need_top_grad=True)

        def create_operator(self, ctx, shapes, dtypes):
            return Op()

    return Prop

def base(x):
    return x

Prop = make("of_five", 5, 1)
Other = make("of_two", 2, 3)
Base = make("of_none", 0, 1)
"""


def test_classes_inside_a_function(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the methods captured travels; a traceback has the file's own lines."""
    written(tmp_path, monkeypatch, FACTORY)
    assert [called("of_five"), called("of_two"), called("of_none"), called("of_five")] == [[5], [8], [1], [5]]
    with pytest.raises(mx.errors.UserCodeError, match=r"ValueError: of_two \(gathered_here.py:13\)"):
        called("of_two", shape=(3,))


def test_a_class_inside_this_very_test(engine: str) -> None:
    factor = np.float32(6)

    class Inner(mx.operator.CustomOp):
        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0] * float(factor))

    @mx.operator.register("inner_of_test")
    class InnerProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> mx.operator.CustomOp:
            return Inner()

    assert called("inner_of_test") == [6]


def test_values_of_other_cells() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    cells = (
        "import dataclasses\n@dataclasses.dataclass\nclass Settings:\n    k: int\n",
        "f = lambda x: x + 1\nsettings = Settings(3)\n",
        "settings = Settings(5)\nsettings.k += 1\n%time\n",
        "settings = (\n",
        "class A:\n    def g(self):\n        return f(settings.k)\n",
    )
    for number, text in enumerate(cells):
        name = f"/tmp/ipykernel_7/{number}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        with contextlib.suppress(SyntaxError):
            exec(compile(text.replace("%time", ""), name, "exec"), space)
    assert run(gather(space["A"]), {})["A"]().g() == space["A"]().g() == 7
