"""Source travels once, by content, to the session that needs it; names belong to sessions; a token must allow it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox.operator import modules
from opbox.operator.bundle import Bundle, Piece, run
from opbox.operator.gather import gather
from opbox_protocol import errors
from tests.contract.live import TOKENS, Live
from tests.custom import operators as own

SOURCE = """
import opbox as mx

class Op(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * FACTOR)

@mx.operator.register("times")
class Prop(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Op()
"""


def bundle(factor: int) -> Bundle:
    return Bundle((Piece("<values>", 1, f"FACTOR = {factor}"), Piece("mine.py", 1, SOURCE)), ("Prop",))


def graph(code: str | None = None) -> dict[str, Any]:
    attrs = {"op_type": "times", "__source__": "train.py:7"}
    if code is not None:
        attrs["__code__"] = code
    return {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "Custom", "name": "y", "attrs": attrs, "inputs": [[0, 0, 0]]},
        ],
        "arg_nodes": [0],
        "heads": [[1, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def define(source: Bundle, **fields: Any) -> dict[str, Any]:
    return {"do": "define", "op_type": "times", "sha256": source.sha256, "bundle": source.json(), **fields}


def run_graph(session: Any, first: int, code: str | None = None) -> Any:
    return session.run(
        {"do": "put", "id": first, "tensor": "x"},
        {"do": "bind", "id": first + 1, "graph": graph(code), "args": {"x": first}, "outputs": [first + 2]},
        {"do": "forward", "executor": first + 1},
        {"do": "fetch", "id": first + 2, "as": "y"},
        x=np.ones((2,), "float32"),
    )


def test_two_sessions_use_one_name_for_different_code(live: Live) -> None:
    sessions = [live.session("py") for _ in range(2)]
    for factor, session in enumerate(sessions, 2):
        assert session.run(define(bundle(factor))).status == 200
    for _ in range(2):
        for factor, session in enumerate(sessions, 2):
            assert run_graph(session, 10 * session.seq).tensors["y"].tolist() == [factor] * 2


def test_a_graph_names_its_code(live: Live) -> None:
    session = live.session("py")
    old, new = bundle(2), bundle(3)
    session.run(define(old), define(new))
    assert run_graph(session, 10).tensors["y"].tolist() == [3, 3]
    assert run_graph(session, 20, old.sha256).tensors["y"].tolist() == [2, 2]
    got = run_graph(session, 30, "0" * 64)
    assert (got.status, got.header["type"]) == (404, "NotFoundError")
    assert got.error.startswith("y (Custom, train.py:7): op_type 'times': expected an operator that this session has")


def test_without_the_scope_nothing_runs(live: Live) -> None:
    session = live.session("ann")
    got = session.run({"do": "put", "id": 1, "tensor": "x"}, define(bundle(2)), x=np.ones(2))
    assert (got.status, got.header["type"]) == (403, "ForbiddenError")
    assert "'upload-python'" in got.error
    assert got.header["detail"] == {"command": 1, "seq": 1}
    assert session.run({"do": "describe", "id": 1}).status == 404


def test_the_client_is_told_of_the_missing_scope(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(HttpTransport(live.url, TOKENS["ann"]))
    try:
        assert own.SquareProp
        net = mx.sym.Custom(mx.sym.Variable("data"), op_type="square_of_mine")
        with pytest.raises(errors.ForbiddenError, match="upload-python"):
            net.infer_shape(data=(2,))
    finally:
        connection.use(None)


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ({"sha256": "0" * 64}, 400, "define 'times': sha256: expected the bundle's"),
        ({"bundle": {"pieces": 3}}, 400, "bundle: operator sources: expected an object with pieces and exports"),
        ({"bundle": None}, 400, "expected an object with pieces and exports"),
        ({"op": "Convolution"}, 400, "command 0 (define)"),
        ({"bundle": None, "live": "os.system"}, 400, "expected an object with pieces and exports"),
    ],
)
def test_bad_definitions(live: Live, command: dict[str, Any], status: int, says: str) -> None:
    got = live.session("py").run(define(bundle(2), **command))
    assert got.status == status
    assert says in got.error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import no_such_module_here\n",
            "the source of 'times': ModuleNotFoundError: No module named 'no_such_module_",
        ),
        ("x = (1,\n", "the source of 'times': SyntaxError: '(' was never closed"),
        ("raise SystemExit(4)\n", "the source of 'times': SystemExit: 4 (mine.py:1)"),
        ("Prop = 3\n", "the source of 'times': expected a CustomOpProp named 'Prop', got none"),
    ],
)
def test_source_that_does_not_run(live: Live, text: str, says: str) -> None:
    session = live.session("py")
    bundle = Bundle((Piece("mine.py", 1, text),), ("Prop",))
    assert session.run(define(bundle)).status == 200  # nothing runs before it is needed
    got = run_graph(session, 1)
    assert (got.status, got.header["type"], got.header["node"]) == (422, "UserCodeError", "y")
    assert says in got.error


def test_code_needs_a_session(live: Live) -> None:
    got = live.json("POST", "/v1/infer_shape", {"graph": graph(), "shapes": {"x": [2]}}, owner="py")
    assert got.status == 404
    assert "operators of a user's own run in a session" in got.error
    assert live.json("GET", "/v1/ops", owner="py").header["operators"]
    names = {op["name"] for op in live.json("GET", "/v1/ops", owner="py").header["operators"]}
    assert not names & {"Custom", "_NumpyOp", "_backward_Custom"}


def test_a_definition_survives_a_batch_that_breaks(live: Live) -> None:
    session = live.session("py")
    got = session.run({"do": "describe", "id": 99}, define(bundle(5)))
    assert got.status == 404
    assert run_graph(session, 1).tensors["y"].tolist() == [5, 5]


def test_inference_in_the_session(live: Live) -> None:
    session = live.session("py")
    got = session.run(
        define(bundle(2)),
        {"do": "infer_shape", "graph": graph(), "shapes": {"x": [2, -1]}, "partial": True, "trace": True},
        {"do": "infer_type", "graph": graph(), "types": {"x": "float16"}},
    )
    shapes, types = got.header["results"]
    assert (shapes["command"], shapes["out_shapes"], shapes["complete"]) == (1, [[2, -1]], False)
    assert shapes["trace"]
    assert types["out_types"] == ["float16"]


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Any:
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


def times(x: Any) -> Any:
    return mx.nd.Custom(x, op_type="times").asnumpy().tolist()


def test_the_same_source_is_sent_once(http: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, monkeypatch, "sent_once", "FACTOR = 4\n" + SOURCE)
    session = mx.cpu().session
    sent: list[str] = []
    record: Callable[..., None] = session.record

    def counting(command: dict[str, Any], tensor: Any = None) -> None:
        sent.append(command["do"])
        record(command, tensor)

    monkeypatch.setattr(session, "record", counting)
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="times")
    for _ in range(3):
        assert times(mx.nd.ones((1,))) == [4]
        assert net.eval(mx.cpu(), data=mx.nd.ones((1,)))[0].asnumpy().tolist() == [4]
    assert sent.count("define") == 1


def test_a_name_registered_anew(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, monkeypatch, "first_times", "FACTOR = 4\n" + SOURCE)
    before = mx.sym.Custom(mx.sym.Variable("data"), op_type="times")
    module(tmp_path, monkeypatch, "second_times", "FACTOR = 6\n" + SOURCE)
    after = mx.sym.Custom(mx.sym.Variable("data"), op_type="times")
    for net, factor in ((before, 4), (after, 6), (before, 4)):
        assert net.eval(mx.cpu(), data=mx.nd.ones((1,)))[0].asnumpy().tolist() == [factor]
    assert times(mx.nd.ones((1,))) == [6]


def test_a_constant_that_has_changed(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = module(tmp_path, monkeypatch, "changing_times", "FACTOR = 4\n" + SOURCE)
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="times")
    for factor in (4, 9):
        own.FACTOR = factor
        assert net.eval(mx.cpu(), data=mx.nd.ones((1,)))[0].asnumpy().tolist() == [factor]


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that a test names are forgotten afterwards."""
    monkeypatch.setattr(modules, "_named", {})


def package(tmp_path: Path) -> None:
    folder = tmp_path / "layers_of_mine"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .numbers_of import FACTOR\n")
    (folder / "numbers_of.py").write_text("from .deep.more import base\nFACTOR = base() + 1\n")
    (folder / "deep" / "__init__.py").write_text("")
    (folder / "deep" / "more.py").write_text("import math\n\ndef base():\n    from ..deep import more\n    return 7\n")


def test_modules_that_travel_along(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: None) -> None:
    package(tmp_path)
    for name in [module for module in sys.modules if module.startswith("layers_of_mine")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = module(tmp_path, monkeypatch, "uses_layers", "from layers_of_mine import FACTOR\n" + SOURCE)
    if engine == "http":
        with pytest.raises(mx.operator.SourceError, match=r"'layers_of_mine' is a file of yours .*bundle\(path\)"):
            times(mx.nd.ones((1,)))
    mx.operator.bundle(tmp_path / "layers_of_mine")
    assert times(mx.nd.ones((1,))) == [8]
    bundle = gather(own.Prop)
    assert [m.name for m in bundle.modules] == [
        "layers_of_mine", "layers_of_mine.deep", "layers_of_mine.deep.more", "layers_of_mine.numbers_of",
    ]  # fmt: skip
    known = set(sys.modules)
    assert run(Bundle.from_json(bundle.json()), {"__name__": "elsewhere"})["FACTOR"] == 8
    assert set(sys.modules) == known


def test_what_can_be_bundled(tmp_path: Path, named: None) -> None:
    with pytest.raises(mx.operator.SourceError, match=r"expected a \.py file or a folder with some"):
        mx.operator.bundle(tmp_path / "nothing")
    (tmp_path / "one.py").write_text("")
    mx.operator.bundle(tmp_path)
    assert modules.is_bundled("one")
    assert not modules.is_bundled("two")


def test_a_bundled_module_that_is_not_there() -> None:
    bundle = Bundle.from_json(
        {
            "pieces": [{"file": "a.py", "line": 1, "text": "import pack.lost"}],
            "exports": [],
            "modules": [{"name": "pack", "package": True, "file": "pack/__init__.py", "text": ""}],
        }
    )
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'pack.lost' in the operator's bundle"):
        run(bundle, {})
