"""Wrong loops and branches, at each door: a sentence that says what is wrong, and limits on what a graph may take."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.control_flow import MAX_LEVELS
from opbox_protocol.errors import GraphError, LimitError, MXNetError, ShapeError, UnsupportedError
from opbox_service.executor import bind
from opbox_service.graph.json import load

from .values import CPU, symbol

V, C = mx.sym.var, mx.sym.contrib

WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("one value", lambda: C.foreach(lambda x, s: x, V("d"), V("s")), ValueError, "two values, got Symbol"),
    ("other lists", lambda: C.foreach(lambda x, s: (x, [s, s]), V("d"), V("s")), ValueError, "states like init_states"),
    ("unused data", lambda: C.foreach(lambda x, s: (s, s), V("d"), V("s")), ValueError, "data input 0 unused"),
    ("unused state", lambda: C.foreach(lambda x, s: (x, x), V("d"), V("s")), ValueError, "state 0 unused"),
    ("a number back", lambda: C.foreach(lambda x, s: (x, 3), V("d"), V("s")), TypeError, "states that body returns"),
    ("a number in", lambda: C.foreach(lambda x, s: (x, s), 3, V("s")), TypeError, "foreach: data: expected a Symbol"),
    ("a number as state", lambda: C.foreach(lambda x, s: (x, s), V("d"), 3), TypeError, "init_states: expected"),
    ("no maximum", lambda: C.while_loop(lambda i: i, lambda i: (i, i), V("i")), ValueError, "max_iterations"),
    (
        "no number",
        lambda: C.while_loop(lambda i: i, lambda i: (i, i), V("i"), "x"),
        ValueError,
        "whole number, got 'x'",
    ),
    (
        "0 times",
        lambda: C.while_loop(lambda i: i, lambda i: (i, i + 1), V("i"), 0),
        MXNetError,
        "max_iterations.*least 1",
    ),
    ("no variables", lambda: C.while_loop(lambda: 1, lambda: (1, 1), [], 3), ValueError, "one loop variable or more"),
    (
        "more back",
        lambda: C.while_loop(lambda i: i, lambda i: (i, [i, i]), [V("i")], 3),
        ValueError,
        "1 loop variables",
    ),
    (
        "a number",
        lambda: C.while_loop(lambda i: 3, lambda i: (i, i), V("i"), 3),
        ValueError,
        "return a Symbol, got int",
    ),
    ("no part", lambda: C.while_loop(lambda i: i, lambda i: ([], V("w") * 2), V("i"), 3), ValueError, "a part in func"),
    (
        "two decide",
        lambda: C.cond(mx.sym.split(V("p"), num_outputs=2), lambda: V("a"), lambda: V("b")),
        ValueError,
        "pred: expected a Symbol of one",
    ),
    ("branches", lambda: C.cond(V("p"), lambda: V("a"), lambda: [V("a"), V("b")]), ValueError, "both branches"),
    ("no symbol", lambda: C.cond(3, lambda: V("a"), lambda: V("b")), TypeError, "cond: pred: expected a Symbol"),
    ("array", lambda: mx.nd.contrib.foreach(lambda x, s: (x, s), 3, mx.nd.ones(1)), TypeError, "expected a NDArray"),
    ("array no number", lambda: mx.nd.contrib.cond(mx.nd.ones(2), lambda: 1, lambda: 2), ValueError, "single number"),
    (
        "array lengths",
        lambda: mx.nd.contrib.foreach(lambda x, s: (x, s), [mx.nd.ones((2, 1)), mx.nd.ones((3, 1))], mx.nd.ones(1)),
        ValueError,
        "arrays of one length",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_calls(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


SHAPES: list[tuple[str, Any, dict[str, Any], str]] = [
    (
        "a state grows",
        lambda: C.foreach(lambda x, s: (x, mx.sym.concat(s, x, dim=0)), V("d"), V("s")),
        {"d": (2, 3), "s": (3,)},
        r"_foreach.*output1: expected \(3,\), got \(6,\)",
    ),
    (
        "two lengths",
        lambda: C.foreach(lambda x, s: (x[0] + x[1], s + x[0]), [V("d"), V("e")], V("s")),
        {"d": (2, 3), "e": (3, 3)},
        "one number of steps",
    ),
    ("inside", lambda: C.foreach(lambda x, s: (x, s + x), V("d"), V("s")), {"d": (2, 3), "s": (4,)}, "elemwise_add"),
    (
        "two elements decide",
        lambda: C.while_loop(lambda i: i < 3, lambda i: ([], [i + 1]), [V("i")], max_iterations=3),
        {"i": (2,)},
        r"cond: expected one element to decide by, got \(2,\)",
    ),
    (
        "branches of two shapes",
        lambda: [C.cond(V("p"), lambda: mx.sym.sum(V("a")), lambda: V("a") * 1)],
        {"p": (1,), "a": (2,)},
        r"expected \(2,\), got \(1,\)|expected \(1,\), got \(2,\)",
    ),
]


@pytest.mark.parametrize(("make", "shapes", "message"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_wrong_shapes(make: Any, shapes: dict[str, Any], message: str) -> None:
    outputs: list[Any] = []
    for part in make():
        outputs += part if isinstance(part, list) else [part]
    with pytest.raises(ShapeError, match=message):
        mx.sym.Group(outputs).infer_shape(**shapes)


def _changed(name: str, change: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(symbol(name).tojson())
    change(next(node for node in document["nodes"] if "subgraphs" in node))
    return document


def _attr(**attrs: str) -> Any:
    return lambda node: node["attrs"].update(attrs)


FILES: list[tuple[str, dict[str, Any], type[MXNetError], str]] = [
    ("none", _changed("cumulative", lambda n: n.pop("subgraphs")), GraphError, r"expected 1 subgraphs \(body\), got 0"),
    ("two", _changed("cumulative", lambda n: n["subgraphs"].append({})), GraphError, r"expected 1 subgraphs .*got 2"),
    (
        "no graph",
        _changed("cumulative", lambda n: n.update(subgraphs=[{}])),
        GraphError,
        "nodes: expected a JSON array",
    ),
    ("no object", _changed("cumulative", lambda n: n.update(subgraphs=[3])), GraphError, "expected a JSON object"),
    ("no list", _changed("cumulative", lambda n: n.update(subgraphs=3)), GraphError, "expected a JSON array"),
    (
        "too few outputs",
        _changed("cumulative", _attr(num_outputs="1", num_out_data="0")),
        GraphError,
        "1 outputs, got 2",
    ),
    ("a huge number", _changed("cumulative", _attr(num_outputs="999999999")), MXNetError, "num_outputs"),
    ("huge inputs", _changed("cumulative", _attr(num_args="999999999")), MXNetError, "num_args"),
    (
        "twice a place",
        _changed("cumulative", _attr(in_data_locs="[0]")),
        GraphError,
        "each of the body's variables once",
    ),
    ("no place", _changed("cumulative", _attr(in_state_locs="[7]")), GraphError, "each of the body's variables once"),
    ("negative", _changed("while", _attr(cond_input_locs="[-1]")), GraphError, "cond_input_locs"),
    ("no input", _changed("while", _attr(func_input_locs="[0, 1, 9]")), GraphError, "num_args"),
    ("no variable", _changed("while", _attr(func_var_locs="[0, 9]")), GraphError, "func_var_locs"),
    ("too few places", _changed("cond lists", _attr(then_input_locs="[0]")), GraphError, "then_input_locs"),
]


@pytest.mark.parametrize(("document", "kind", "message"), [row[1:] for row in FILES], ids=[row[0] for row in FILES])
def test_wrong_files(document: dict[str, Any], kind: type[MXNetError], message: str) -> None:
    with pytest.raises(kind, match=message):
        load(document)


def test_other_operators_have_no_subgraphs() -> None:
    document = json.loads(symbol("cumulative").tojson())
    inner = document["nodes"][-1]["subgraphs"]
    inner[0]["nodes"][-1]["subgraphs"] = [{}]
    for read in (load, lambda graph: mx.sym.load_json(json.dumps(graph))):
        with pytest.raises(UnsupportedError, match="expected no subgraphs, got 1"):
            read(document)


def _deep(levels: int) -> Any:
    """A body in a body in a body."""

    def body(level: int) -> Any:
        if level == 0:
            return lambda x, s: (x * s, s + x)
        return lambda x, s: C.foreach(body(level - 1), mx.sym.expand_dims(x, axis=0), s)

    return mx.sym.Group(list(C.foreach(body(levels - 1), V("d"), V("s"))))


def test_depth_and_nodes_are_limited() -> None:
    text = _deep(MAX_LEVELS).tojson()
    count = text.count('"op": ')
    assert load(text, max_nodes=count)
    with pytest.raises(LimitError, match=f"expected at most {count - 1}"):
        load(text, max_nodes=count - 1)
    with pytest.raises(LimitError, match=f"at most {MAX_LEVELS} subgraphs"):
        load(_deep(MAX_LEVELS + 1).tojson())


def test_deep_loops_are_inferred_and_run() -> None:
    graph = load(_deep(5).tojson())
    args = {"d": CPU.put(np.full((2, 3), 2.0)), "s": CPU.put(np.ones(3))}
    executor = bind(graph, args=args, backend=CPU, random=CPU.random(0))
    executor.forward()
    np.testing.assert_array_equal(np.array(executor.outputs[1]), np.full(3, 5.0))


def test_memory_of_all_steps_is_counted_before_it_is_taken() -> None:
    out, last = C.foreach(lambda x, s: (mx.sym.exp(x) * mx.sym.sin(s), s + x), V("d"), V("s"))
    graph = load(mx.sym.Group([out, last]).tojson())
    args = {"d": CPU.put(np.ones((1000, 100), "float32")), "s": CPU.put(np.ones(100, "float32"))}
    grads = {name: CPU.put(array) for name, array in args.items()}
    executor = bind(graph, args=args, grads=grads, backend=CPU, random=CPU.random(0))
    assert executor.memory.arena_bytes > 1000 * 100 * 4  # sin(s) of every step
    with pytest.raises(LimitError, match="the executor needs"):
        bind(graph, args=args, grads=grads, backend=CPU, random=CPU.random(0), max_bytes=500_000)
    alone = bind(graph, args=args, backend=CPU, random=CPU.random(0))
    assert alone.memory.arena_bytes < 10_000


def test_rows_beyond_all_memory_are_refused() -> None:
    out, _ = C.while_loop(lambda i: i < 3, lambda i: (i, [i + 1]), [V("i")], max_iterations=2**31 - 1)
    graph = load(out.tojson())
    args = {"i": CPU.put(np.ones((1, 1), "float32"))}
    with pytest.raises(LimitError):
        bind(graph, args=args, backend=CPU, random=CPU.random(0), max_bytes=1 << 20)
