"""The plan pass that marks views: their steps do not run, unless an array could not be viewed under another shape."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_service.executor.compile import compile_plan
from opbox_service.executor.passes.views import views
from opbox_service.graph.json import load


def plan(passes, strided=frozenset()):
    net = mx.sym.Reshape(mx.sym.Variable("data"), shape=(-1,)) + 1.0
    graph = load(net.tojson())
    return compile_plan(graph, {"data": (2, 3)}, {"data": np.dtype("f")}, {}, passes=passes, strided=strided)


@pytest.mark.parametrize(
    ("passes", "strided", "elided"),
    [((views,), frozenset(), {0}), ((), frozenset(), set()), ((views,), frozenset({("arg", "data")}), set())],
    ids=["marked", "without the pass", "an array that is not contiguous"],
)
def test_a_view_does_not_run(passes, strided, elided):
    compiled = plan(passes, strided)
    assert [step.node.op.name for step in compiled.steps] == ["Reshape", "_plus_scalar"]
    assert compiled.memory.elided == elided
