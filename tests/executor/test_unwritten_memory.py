"""Every row of the operator table in memory full of one pattern, then of another: its results are the same bits.

So no operator leaves a part of its results to what was in memory before, and none computes from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend.numpy import NumpyBackend
from opbox_service.executor import bind, invoke
from tests.cases import Case, all_cases
from tests.cases.values import head_gradient, inputs, is_float
from tests.poison import needs_compiler, poisoned

from .test_operators import graph_of

PATTERNS = (0xA5, 0x3C)
ROWS = [(case, dtype) for case in all_cases() for dtype in case.dtypes]


class UnwipedBackend(NumpyBackend):
    """Wipes no memory: executors have the pattern in all that they allocate, too."""

    zeros = NumpyBackend.empty


def by_itself(case: Case, dtype: str, backend: Any) -> list[np.ndarray]:
    """The results of the operator called on arrays, and what it has made of these."""
    arrays = [array.copy() for array in inputs(case, dtype).values()]
    targets = None
    if case.out_shapes is not None and registry.get(case.op).get_attr("FOutputShapes") is None:
        targets = [backend.empty(shape, dtype) for shape in case.out_shapes]
    outputs = invoke(
        case.op,
        {key: str(value) for key, value in case.attrs.items()},
        arrays,
        backend=backend,
        random=backend.random(5),
        is_train=case.is_train,
        outputs=targets,
    )
    return [*outputs, *arrays]


def in_a_graph(case: Case, dtype: str, backend: Any) -> list[np.ndarray]:
    """Outputs, gradients and states of an executor that trains, and outputs of one that does not."""
    results: list[np.ndarray] = []
    graph = graph_of(case)
    for trains in (case.grad, False):
        arrays = inputs(case, dtype)
        args, aux = (
            {name: arrays[name].copy() for name in names} for names in (graph.argument_names, graph.auxiliary_names)
        )
        grads = {name: np.zeros_like(array) for name, array in args.items() if trains and is_float(array.dtype)}
        executor = bind(graph, args=args, grads=grads, aux=aux, backend=backend, random=backend.random(5))
        executor.forward(is_train=case.is_train and trains)
        results += [output.copy() for output in executor.outputs]
        if grads:
            executor.backward([head_gradient(case, i, out.shape, out.dtype) for i, out in enumerate(executor.outputs)])
        results += [*grads.values(), *aux.values()]
    return results


@needs_compiler
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_memory_is_full_of_it(pattern: int) -> None:
    with poisoned(pattern):
        small, large = np.empty(3, np.uint8), np.empty(1 << 20, np.uint8)
        x = np.ones((8, 9), np.float32)
        backend = UnwipedBackend()
        case = next(case for case in all_cases() if case.op == "relu")
        arrays = dict.fromkeys(graph_of(case).argument_names, x)
        executor = bind(graph_of(case), args=arrays, backend=backend, random=backend.random(0))
    for array in (small, large, executor.outputs[0].view(np.uint8), executor._arena):
        assert set(array.reshape(-1).tolist()) == {pattern}


@needs_compiler
@pytest.mark.parametrize(
    ("case", "dtype"), [pytest.param(case, dtype, id=f"{dtype}-{case.id}") for case, dtype in ROWS]
)
def test_no_result_depends_on_it(case: Case, dtype: str) -> None:
    runs = []
    for pattern in PATTERNS:
        with poisoned(pattern):
            results = by_itself(case, dtype, UnwipedBackend())
            if case.out_shapes is None:  # a graph has to know its shapes
                results += in_a_graph(case, dtype, UnwipedBackend())
            runs.append([(array.dtype, array.shape, array.tobytes()) for array in results])
    assert runs[0] == runs[1]
