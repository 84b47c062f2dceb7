"""Random graphs in MXNet and here: JSON both ways, name lists, shapes and types from full and partial knowledge."""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.errors import MXNetError
from opbox_service.executor import bind
from opbox_service.graph.ir import Graph
from opbox_service.graph.json import dump, load
from opbox_service.graph.passes.infer_shape import infer_shape
from opbox_service.graph.passes.infer_type import infer_type

from .generate_graphs import Growing, grow
from .mxnet import Oracle, RefusedError

pytestmark = pytest.mark.conformance

GRAPHS = 40 * int(os.environ.get("OPBOX_GENERATED", "3"))
SIDES = ("arg_shapes", "out_shapes", "aux_shapes")

every_graph = pytest.mark.parametrize("number", range(GRAPHS))


def _graph(number: int) -> tuple[Growing, str, Graph]:
    growing = grow(Random(f"graph {number}"), 3 + number % 14)
    text = growing.json()
    return growing, text, load(text)


def _plain(shape: Any) -> list[int]:
    """MXNet's way of saying it: 0 is unknown, and () nothing known."""
    return [] if shape is None else [max(d, 0) for d in shape]


def _contradict(ours: list[int], theirs: list[int]) -> bool:
    if not ours or not theirs:
        return False
    return len(ours) != len(theirs) or any(a != b and a and b for a, b in zip(ours, theirs, strict=True))


def _known(shape: list[int]) -> int:
    return 1 + sum(1 for d in shape if d) if shape else 0


@every_graph
def test_names_shapes_and_json(oracle: Oracle, number: int) -> None:
    growing, text, graph = _graph(number)
    lists = oracle.ask("lists", json=text)[0]
    assert graph.argument_names == lists["arg_names"]
    assert graph.output_names == lists["out_names"]
    assert graph.auxiliary_names == lists["aux_names"]
    theirs = oracle.ask("shapes", json=text, shapes=growing.shapes(), partial=False)[0]
    ours = infer_shape(graph, growing.shapes())
    for side in SIDES:
        assert [list(shape or ()) for shape in getattr(ours, side)] == theirs[side], side
    written = json.dumps(dump(graph))
    assert oracle.ask("lists", json=written)[0] == {**lists, "json": oracle.ask("lists", json=written)[0]["json"]}
    assert oracle.ask("shapes", json=written, shapes=growing.shapes(), partial=False)[0] == theirs
    again = load(lists["json"])
    assert again.argument_names == graph.argument_names
    assert infer_shape(again, growing.shapes()).arg_shapes == ours.arg_shapes


@every_graph
def test_partial_shapes(oracle: Oracle, number: int) -> None:
    """What we find is true, and at least what MXNet finds, where that is true.

    (Where an input of Concat is unknown, MXNet's partial result is the sum of the others.)
    """
    growing, text, graph = _graph(number)
    rng = Random(f"partial {number}")
    full = infer_shape(graph, growing.shapes())
    whole = dict(zip(graph.argument_names, full.arg_shapes, strict=True))
    known_shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in whole.items():
        chance = rng.random()
        if chance < 0.35 or shape is None:
            continue
        known_shapes[name] = shape if chance < 0.7 else tuple(d if rng.random() < 0.5 else 0 for d in shape)
    ours = infer_shape(graph, {n: tuple(d or -1 for d in s) for n, s in known_shapes.items()}, partial=True)
    try:
        theirs = oracle.ask("shapes", json=text, shapes=known_shapes, partial=True)[0]
    except RefusedError:
        # Many of MXNet's rules take an unknown dimension for a wrong one.
        return
    names = {"arg_shapes": graph.argument_names, "out_shapes": graph.output_names, "aux_shapes": graph.auxiliary_names}
    for side in SIDES:
        for k, name in enumerate(names[side]):
            got, other, truth = _plain(getattr(ours, side)[k]), theirs[side][k], _plain(getattr(full, side)[k])
            assert not _contradict(got, truth), f"{name}: {got}, is {truth}, given {known_shapes}"
            if not _contradict(other, truth):
                assert _known(got) >= _known(other), f"{name}: {got}, MXNet knows {other}, given {known_shapes}"


@every_graph
def test_contradictions_are_refused_by_both(oracle: Oracle, number: int) -> None:
    """One argument's shape is off by one: refused by MXNet, refused here."""
    growing, text, graph = _graph(number)
    rng = Random(f"wrong {number}")
    full = infer_shape(graph, growing.shapes())
    # MXNet overwrites a wrong shape of BatchNorm's gamma and beta without a word; here it is an error.
    shapes = {n: s for n, s in zip(graph.argument_names, full.arg_shapes, strict=True) if s and "batchnorm" not in n}
    name = rng.choice(sorted(shapes))
    axis = rng.randrange(len(shapes[name]))
    wrong = {**shapes, name: tuple(d + (i == axis) for i, d in enumerate(shapes[name]))}
    try:
        theirs: Any = oracle.ask("shapes", json=text, shapes=wrong, partial=False)[0]
    except RefusedError:
        theirs = None
    ours: Any = None
    refused = ""
    try:
        ours = infer_shape(graph, wrong)
    except MXNetError as error:
        refused = error.message
    if ours is None:
        assert theirs is None, f"MXNet takes {name} {wrong[name]}, we say: {refused}"
        return
    assert theirs is not None, f"MXNet refuses {name} {wrong[name]}"
    assert [list(s or ()) for s in ours.out_shapes] == theirs["out_shapes"]


@every_graph
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_types(oracle: Oracle, number: int, dtype: str) -> None:
    _, text, graph = _graph(number)
    known_types = {graph.argument_names[0]: dtype}
    try:
        theirs = oracle.ask("types", json=text, types=known_types, partial=True)[0]
    except RefusedError as refused:
        # Embedding and Dropout insist on a type that they could wait for.
        if "specified" not in str(refused):
            with pytest.raises(MXNetError):
                infer_type(graph, known_types, partial=True)
        return
    ours = infer_type(graph, known_types, partial=True)
    names = {"arg_types": graph.argument_names, "out_types": graph.output_names, "aux_types": graph.auxiliary_names}
    for side, listed in names.items():
        for name, mine, other in zip(listed, getattr(ours, side), theirs[side] or [None] * len(listed), strict=True):
            got = None if mine is None else mine.name
            assert got == other or other is None, f"{name}: {got}, MXNet {other}"


@every_graph
def test_outputs_and_gradients(oracle: Oracle, number: int) -> None:
    """The whole graph runs and is differentiated as in MXNet, with planned memory, in float64."""
    growing = grow(Random(f"run {number}"), 3 + number % 14, to_run=True)
    text = growing.json()
    graph = load(text)
    inferred = infer_shape(graph, growing.shapes())
    rng = np.random.RandomState(number)

    def drawn(name: str, shape: Any) -> Any:
        if name.startswith("softmaxoutput"):
            return rng.randint(0, 2, shape).astype(np.float64)
        return rng.uniform(0.25, 1.5, shape)

    args = {n: drawn(n, s) for n, s in zip(graph.argument_names, inferred.arg_shapes, strict=True)}
    aux = {n: drawn(n, s) for n, s in zip(graph.auxiliary_names, inferred.aux_shapes, strict=True)}
    heads = [rng.uniform(-1, 1, shape) for shape in inferred.out_shapes]
    arrays = {f"arg:{n}": a.copy() for n, a in (args | aux).items()} | {f"head:{i}": h for i, h in enumerate(heads)}
    try:
        theirs = oracle.ask("run", arrays, json=text, wanted=list(args), is_train=True)[1]
    except RefusedError as refused:
        if "kWriteTo" in str(refused):  # a convolution whose output nobody needs
            return
        raise
    cpu = backend_for("cpu")
    grads = {name: np.full_like(array, np.nan) for name, array in args.items()}
    ex = bind(graph, args=args, grads=grads, aux=aux, backend=cpu, random=cpu.random(0))
    ex.forward(is_train=True)
    ex.backward([head if value >= 0 else None for head, value in zip(heads, ex.plan.head_grads, strict=True)])
    ours = {f"out:{i}": out for i, out in enumerate(ex.outputs)}
    ours |= {f"grad:{n}": a for n, a in grads.items()} | {f"after:{n}": a for n, a in aux.items()}
    for key, got in ours.items():
        scale = max(1.0, float(np.nanmax(np.abs(theirs[key]), initial=0.0)))
        np.testing.assert_allclose(got, theirs[key], rtol=1e-6, atol=1e-6 * scale, err_msg=key)
