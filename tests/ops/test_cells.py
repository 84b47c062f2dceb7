"""RNN in float32 with products in blocks: steps in C have the bits of NumPy's, by any number of threads."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec, CallSpec, Mode, OpContext
from opbox_ops.cpu.algorithms import blocked_product
from opbox_ops.cpu.algorithms.blocked_product import ProductSizes
from opbox_ops.cpu.algorithms.recurrent_cells import Cells, compiled_cells
from opbox_ops.cpu.computes import product
from opbox_ops.cpu.computes.product import block_matmul, packed_columns
from opbox_ops.rnn.layout import GATES, reserve_size
from opbox_ops.rnn.operator import backward_temps_of, differentiate, forward_temps_of, run, sizes_of
from opbox_ops.rnn.steps import Kernels
from tests.machine import has_compiler, needs_matrix_unit

from .recurrent_script import recurrent_script
from .thread_counts import assert_same_bits

TIME, BATCH, INPUTS, HIDDEN = 5, 48, 30, 50
"""More numbers of a state than are one thread's, and units that do not fill the last piece."""
CPU = backend_for("cpu")


@pytest.fixture(scope="module")
def cells() -> Cells:
    if not has_compiler():
        pytest.skip("no C compiler")
    compiled = compiled_cells()
    assert compiled is not None
    return compiled


def context(specs: tuple[Any, Any], temps: Any, p: Any) -> OpContext:
    call = CallSpec("cpu", *(tuple([ArraySpec(array.shape, array.dtype) for array in side]) for side in specs))
    scratches = tuple([np.zeros(temp.shape, temp.dtype) for temp in temps(p, call).values()])
    return OpContext(np, CPU.special, CPU.random(0), CPU, Mode(is_train=True), temp=scratches, call=call)


def computed(
    mode: str, cells: Cells | None, attrs: dict[str, Any], *, packs: bool = True, value: float = np.nan
) -> list[np.ndarray[Any, Any]]:
    """Outputs and gradients of two layers; data has the value once."""
    op = registry.get("RNN")
    p = op.parse({"mode": mode, "state_size": HIDDEN, "num_layers": 2, "state_outputs": True, **attrs})
    sizes, rng = sizes_of(p, (TIME, BATCH, INPUTS)), np.random.default_rng(3)

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(size=shape).astype(np.float32) / 3

    states = [drawn(2 * sizes.directions, BATCH, HIDDEN) for _ in range(2 if mode == "lstm" else 1)]
    inputs = [drawn(TIME, BATCH, INPUTS), drawn(sizes.parameters), *states]
    inputs[0][1, 2, 3] = value
    if p.use_sequence_length:
        inputs.append(rng.integers(1, TIME + 1, BATCH).astype(np.float32))
    shapes = [(TIME, BATCH, sizes.directions * HIDDEN), *[state.shape for state in states], (reserve_size(sizes),)]
    outputs = [np.zeros(shape, np.float32) for shape in shapes]
    kernels = Kernels(block_matmul, cells, packed_columns if packs else None)
    run(p, context((inputs, outputs), forward_temps_of, p), inputs, outputs, kernels)
    arguments = [*map(np.cos, outputs[:-1]), *inputs, outputs[-1]]
    gradients = [np.zeros_like(array) for array in inputs]
    differentiate(p, context((arguments, gradients), backward_temps_of, p), arguments, gradients, kernels)
    return [*outputs, *gradients]


@pytest.mark.parametrize("packs", [False, True], ids=["as it lies", "packed"])
@pytest.mark.parametrize("attrs", [{}, {"bidirectional": True}, {"use_sequence_length": True}], ids=str)
@pytest.mark.parametrize("mode", GATES)
def test_bits_are_numpys(cells: Cells, mode: str, attrs: dict[str, Any], packs: bool) -> None:
    with np.errstate(all="ignore"):
        arrays = computed(mode, cells, attrs, packs=packs), computed(mode, None, attrs)
        for mine, expected in zip(*arrays, strict=True):
            np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("mode", GATES)
def test_batches_of_a_part_of_a_vector(cells: Cells, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BATCH", 13)
    for limit in ("MIN_MULTIPLICATIONS", "MIN_SIDE"):
        monkeypatch.setattr(product, limit, 1)
    for mine, expected in zip(computed(mode, cells, {}), computed(mode, None, {}), strict=True):
        np.testing.assert_array_equal(mine, expected)


@needs_matrix_unit
@pytest.mark.parametrize("attrs", [{}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("mode", GATES)
def test_a_matrix_unit_computes_the_products_of_steps(
    cells: Cells, mode: str, attrs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same bits in the next run; two layers of five steps make 2e-3 of a rounding: each doubles it or more."""
    monkeypatch.setattr(blocked_product, "MIN_SPLIT_MULTIPLICATIONS", 0)
    assert ProductSizes(BATCH, 4 * HIDDEN, HIDDEN, (True, False), reads_packed=True).splits
    with np.errstate(all="ignore"):
        arrays, again = (computed(mode, cells, attrs, value=0.5) for _ in range(2))
        monkeypatch.setattr(blocked_product, "has_matrix_unit", lambda: False)
        for mine, same, expected in zip(arrays, again, computed(mode, cells, attrs, value=0.5), strict=True):
            np.testing.assert_array_equal(mine, same)
            np.testing.assert_allclose(mine, expected, rtol=0, atol=2e-3 * np.abs(expected).max())
            assert np.isfinite(mine).all()


def test_clipped_and_projected_cells_are_numpys(cells: Cells) -> None:
    """They have no step in C, and are computed all the same."""
    attrs = {"lstm_state_clip_min": -0.1, "lstm_state_clip_max": 0.1}
    for mine, expected in zip(computed("lstm", cells, attrs), computed("lstm", None, attrs), strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.usefixtures("cells")
def test_threads_change_no_bit() -> None:
    assert_same_bits(recurrent_script(TIME, BATCH, INPUTS, HIDDEN))
