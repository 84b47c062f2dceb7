"""An operator's source travels by content: what it needs, nothing else, with the user's line numbers."""

from __future__ import annotations

import argparse
import linecache
import subprocess
import sys
import textwrap
import traceback
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox.operator.bundle import Bundle, SourceError, run
from opbox.operator.gather import gather
from opbox.operator.values import expression, literal

SCRIPT = '''\
import math
import os
import numpy as np
from collections import OrderedDict as Ordered

SCALE = 3
UNUSED = open(os.devnull)
TABLE = {"a": (1, 2.5)}
STEP = np.arange(4).sum()


def helper(x):
    return inner(x) * SCALE


def inner(x):
    return np.asarray(x) + TABLE["a"][0] + STEP


class Base:
    offset = math.pi


class Op(Base):
    """Doc."""

    def forward(self, x):
        return helper(x) + len(Ordered()) + self.offset

    def fail(self):
        raise ValueError("here")  # line 31
'''


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> dict[str, Any]:
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return vars(__import__(name))


def test_what_the_class_needs_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = module(tmp_path, monkeypatch, "script_one", SCRIPT)
    bundle = gather(space["Op"])
    text = bundle.text()
    for needed in (
        "class Op",
        "class Base",
        "def helper",
        "def inner",
        "SCALE = 3",
        "TABLE = ",
        "import numpy as np",
        "STEP = ",
    ):
        assert needed in text
    assert "UNUSED" not in text
    assert "import os" not in text
    assert str(tmp_path) not in text
    there = run(Bundle.from_json(bundle.json()), {})
    assert there["Op"]().forward([1.0]).tolist() == space["Op"]().forward([1.0]).tolist()
    space["UNUSED"].close()


def test_tracebacks_show_the_users_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = module(tmp_path, monkeypatch, "script_two", SCRIPT)
    there = run(gather(space["Op"]), {})
    with pytest.raises(ValueError, match="here") as caught:
        there["Op"]().fail()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == ("<script_two.py>", 31, 'raise ValueError("here")  # line 31')
    space["UNUSED"].close()


def test_the_hash_is_the_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "K = 1\nclass A:\n    def f(self):\n        return K\n"
    one = module(tmp_path, monkeypatch, "script_three", text)
    first = gather(one["A"]).sha256
    assert gather(one["A"]).sha256 == first
    one["K"] = 2
    assert gather(one["A"]).sha256 != first


def cell(number: int, text: str, space: dict[str, Any]) -> None:
    """Run text as a notebook cell: exec with a source that linecache knows."""
    name = f"/tmp/ipykernel_1/{number}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)


def test_notebook_cells_together() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    cell(1, "import numpy as np\nFACTOR = 4\n", space)
    cell(2, "def grow(x):\n    return np.multiply(x, FACTOR)\n", space)
    cell(3, "class A:\n    def f(self, x):\n        return grow(x)\n", space)
    there = run(gather(space["A"]), {})
    assert there["A"]().f(3) == 12


MAIN_SCRIPT = """
from opbox.operator.bundle import run
from opbox.operator.gather import gather
from opbox.operator.values import expression, literal

LIMIT = 5
local = open

class A:
    def f(self):
        local = LIMIT
        return local

if __name__ == '__main__':
    local = object()
    class B(A):
        def f(self):
            return LIMIT + 1
    print(run(gather(A), {})['A']().f(), len(gather(A).pieces), run(gather(B), {})['B']().f())
"""


def test_a_script_run_as_main(tmp_path: Path) -> None:
    script = tmp_path / "main_script.py"
    script.write_text(MAIN_SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "2", "6"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "def make(k):\n    class A:\n"
            "        K = k\n        def f(self):\n            return 1\n    return A\nA = make(2)\n",
            "inside 'make' and reads 'k' there, outside of its methods: move it to the top level",
        ),
        (
            "def make(k):\n    class A:\n"
            "        def f(self):\n            nonlocal k\n            k = 1\n    return A\nA = make(2)\n",
            "inside 'make', and by itself has no binding for nonlocal 'k' found: move it to the top level",
        ),
        (
            "def make(k):\n    class A:\n"
            "        def f(self):\n            return k\n    return A\nA = make(object())\n",
            "name 'k' holds a value of type object",
        ),
        (
            "def base(k):\n    class A:\n        def f(self):\n            return k\n    return A\n"
            "def make(B, C):\n    class A:\n        def f(self):\n            return B, C\n    return A\n"
            "A = make(base(1), base(2))\n",
            "two classes that two calls of a function have made of one statement",
        ),
        (
            "k = 1\ndef top():\n    return k\ndef make(k):\n    class A:\n        def f(self):\n"
            "            return k, top()\n    return A\nA = make(2)\n",
            "name 'k' means two things in script.py: rename one of them",
        ),
        (
            "import other_file_of_mine\nclass A:\n    def f(self):\n        return other_file_of_mine\n",
            "mx.operator.bundle",
        ),
        (
            "from .near import x\nclass A:\n    def f(self):\n        return x\n",
            "'sent.near' is a file .* its package 'sent'",
        ),
    ],
)
def test_what_cannot_be_sent_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    (tmp_path / "other_file_of_mine.py").write_text("")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "__init__.py").write_text("")
    (tmp_path / "sent" / "near.py").write_text("x = object()\n")
    (tmp_path / "sent" / "script.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("sent", "sent.script", "sent.near", "other_file_of_mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = __import__("sent.script", fromlist=["A"])
    with pytest.raises(SourceError, match=says):
        gather(module.A)


def test_an_object_that_only_lives_here() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "handle": object()}
    cell(9, "class A:\n    def f(self):\n        return handle\n", space)
    with pytest.raises(SourceError, match="name 'handle' holds a value of type object, which cannot be sent"):
        gather(space["A"])


def test_an_open_file_is_refused_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "import io, sys\nmemory, stream = io.StringIO('x'), sys.stdout\n"
    text = f"{header}handle = open(__file__)\nclass A:\n    def f(self):\n        return handle\n"
    script = tmp_path / "with_a_file_of_mine.py"
    script.write_text(text + "class B:\n    def f(self):\n        return memory, stream\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("with_a_file_of_mine")
    with (
        module.handle,
        pytest.raises(SourceError, match=r"with_a_file_of_mine\.py:4: name 'handle' holds an open file"),
    ):
        gather(module.A)
    assert "memory" in str(gather(module.B).json())


def test_a_statement_that_reads_the_scripts_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Table:\n    def __init__(self, path):\n        self.path = path\ntable = Table(__file__)\n"
    (tmp_path / "reads_its_file.py").write_text(text + "class A:\n    def f(self):\n        return table\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SourceError, match=r"reads_its_file\.py:4: it reads __file__ when it is loaded"):
        gather(__import__("reads_its_file").A)


def test_no_source_at_all() -> None:
    space: dict[str, Any] = {"__name__": "somewhere"}
    exec("class A:\n    def f(self):\n        return 1\n", space)
    with pytest.raises(SourceError, match="operator class 'A': its source cannot be read"):
        gather(space["A"])


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -2.5, float("inf"), "x", b"y", (1,), (1, (2, "z")), [1, 2], {"k": [1]}, {1, 2}, frozenset({3})],
)
def test_plain_values_are_written_down(value: Any) -> None:
    text = literal(value)
    assert text is not None
    assert eval(text) == value


def test_other_values_are_not() -> None:
    for write in (literal, expression):
        assert write(object()) is None
        assert write([object()]) is None
        assert write(np.array([object()])) is None
    assert literal(np.ones(3)) is None
    assert expression(np.ones(1 << 17)) is None


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype="int16").reshape(2, 3),
        np.array([0.1, np.inf, np.nan], "float16"),
        np.zeros((0, 3), "uint8"),
        np.array(2.5, "float32"),
        np.array([[True], [False]]),
        np.float32(0.1),
        np.int64(7),
        np.bool_(True),
    ],
)
def test_numpys_values_are_written_down(value: Any) -> None:
    again = eval(str(expression({"k": [value]})))["k"][0]
    assert (type(again), again.dtype, again.shape) == (type(value), value.dtype, value.shape)
    np.testing.assert_array_equal(again, value)


def test_types_and_namespaces_are_written_down() -> None:
    for value in (
        np.dtype("float16"),
        argparse.Namespace(lr=0.1, sizes=[1, 2]),
        types.SimpleNamespace(a=np.float32(1)),
    ):
        assert eval(str(expression(value))) == value
