"""Every row of the operator table inside a graph: what sharing memory does to it must not be seen.

The operator stands between copies, so that its inputs die in it and its outputs are read on: views alias, pairs
share in place, gradients take over the memory of values that are gone.
"""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.node import Entry, Node
from opbox_service.executor import bind
from opbox_service.graph import Graph
from tests.cases import Case, all_cases
from tests.cases.values import head_gradient, inputs

from . import toy_ops as toy

CPU = backend_for("cpu")
CASES = [case for case in all_cases() if case.out_shapes is None]  # a graph has to know its shapes


def graph_of(case: Case) -> Graph:
    op = registry.get(case.op)
    attrs = {key: str(value) for key, value in case.attrs.items()}
    params = op.parse(attrs)
    variables = [Entry(Node(None, name)) for name in case.inputs]
    aux = set(op.aux_indices(params))
    between = [v if i in aux else toy.call(toy.HOLD, f"{v.node.name}_in", v) for i, v in enumerate(variables)]
    node = Node(op, "op", attrs, params, tuple(between))
    return Graph([toy.call(toy.HOLD, f"out{i}", Entry(node, i)) for i in range(op.num_visible_outputs(params))])


def run(case: Case, graph: Graph, share: bool) -> list[np.ndarray]:
    arrays = inputs(case, case.dtypes[0])
    args = {name: arrays[name].copy() for name in graph.argument_names}
    aux = {name: arrays[name].copy() for name in graph.auxiliary_names}
    floats = {name: array for name, array in args.items() if array.dtype.kind == "f"} if case.grad else {}
    grads = {name: np.zeros_like(array) for name, array in floats.items()}
    ex = bind(graph, args=args, grads=grads, aux=aux, backend=CPU, random=CPU.random(5), share=share)
    ex._arena[...] = 0x7F
    ex.forward(is_train=case.is_train)
    outputs = [out.copy() for out in ex.outputs]
    if grads:
        ex.backward([head_gradient(case, i, out.shape, out.dtype) for i, out in enumerate(ex.outputs)])
    return [*outputs, *grads.values(), *aux.values()]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_sharing_is_not_seen(case: Case) -> None:
    graph = graph_of(case)
    for shared, alone in zip(run(case, graph, True), run(case, graph, False), strict=True):
        np.testing.assert_array_equal(shared, alone)
