"""CUDA C++ as people write it: the emulator gives the values that a device would, and refuses what NVRTC refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.rtc import parse_signature
from opbox_ops.rtc.emulator import EmulatedModule
from opbox_protocol.errors import BadRequestError

from .texts import KERNELS, REFUSED

pytestmark = pytest.mark.compiler

RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def run(cache: Path, name: str, *args: Any) -> None:
    text = KERNELS[name]
    kernel = EmulatedModule(text.source, cache=cache).kernel("k", parse_signature("k", text.signature))
    kernel.launch(args, text.grid, text.block, text.shared)


def floats(n: int) -> Any:
    return RNG.normal(size=n).astype(np.float32)


def test_warp_shuffles(cache: Path) -> None:
    x, y = floats(1000), np.zeros(1, np.float32)
    run(cache, "warp shuffles", x, y, 1000)
    np.testing.assert_allclose(y, [x.sum()], rtol=1e-4)


def test_shuffles_in_a_row(cache: Path) -> None:
    x, y, z = floats(32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    run(cache, "shuffles in a row", x, y, z)
    assert (y[0], z[0]) == (x.max(), x.argmax())


def test_warp_votes(cache: Path) -> None:
    x, y = floats(32), np.zeros(224, np.int32)
    run(cache, "warp votes", x, y)
    votes, some, same, total, scan, active, moved = y.view(np.uint32).reshape(7, 32)
    lane = np.arange(32)
    assert set(votes) == {(x > 0).sum()}
    assert set(some) == {1}
    np.testing.assert_array_equal(same, [(0x11111111 << (n % 4)) + 0xFFFFFFFF & 0xFFFFFFFF for n in lane])
    assert set(total) == {lane.sum()}
    np.testing.assert_array_equal(scan, lane + 1)
    np.testing.assert_array_equal(active, np.where(lane % 2, 0xAAAAAAAA, 0))
    np.testing.assert_array_equal(moved, lane // 8 * 8 + 2 + (lane ^ 1))


def test_votes_of_a_block(cache: Path) -> None:
    y = np.zeros(48, np.int32)
    run(cache, "votes of a block", y)
    assert set(y) == {124}


def test_atomics_by_comparing(cache: Path) -> None:
    x, y, z = floats(32), np.zeros(1), np.full(1, -9, np.float32)
    run(cache, "atomics by comparing", x, y, z)
    assert (y[0], z[0]) == (48, x.max())


def test_vectors(cache: Path) -> None:
    x, y = floats(32), np.zeros(16, np.float32)
    run(cache, "vectors", x, y)
    np.testing.assert_array_equal(y, x.reshape(-1, 2).sum(axis=1))


def test_two_halves(cache: Path) -> None:
    x, y = RNG.normal(size=64).astype(np.float16), np.zeros(64, np.float16)
    run(cache, "two halves", x, y)
    moved = (x.astype(np.float64) * 2 + np.tile([1, -1], 32)).astype(np.float16)
    np.testing.assert_array_equal(y, moved * moved)


def test_dynamic_shared_memory_in_parts(cache: Path) -> None:
    x, y = floats(32), np.zeros(32, np.float32)
    run(cache, "dynamic shared memory in parts", x, y, 32)
    np.testing.assert_array_equal(y, x[::-1])


def test_declarations(cache: Path) -> None:
    y = np.arange(9, dtype=np.float32)
    run(cache, "declarations", y, 4)
    np.testing.assert_array_equal(y, [8, 2, 3, 6, 0.5, 17.5, 59, 11, 8])


def test_functions(cache: Path) -> None:
    y = np.zeros(15, np.float32)
    run(cache, "functions", y)
    want = [1, 1, 1, 13.5, 1, 5, 3, 96, 1, 1, 15, 3, 5, 3.5, 1]
    np.testing.assert_allclose(y, want, rtol=1e-6)


def test_masks_of_boxes(cache: Path) -> None:
    starts = np.sort(RNG.random(50))
    x, mask = np.stack([starts, starts + 0.2], axis=1).astype(np.float32), np.zeros(50, np.int64)
    run(cache, "masks of boxes", x, mask, 50)
    common = np.maximum(np.minimum(x[:, None, 1], x[None, :, 1]) - np.maximum(x[:, None, 0], x[None, :, 0]), 0)
    wide = x[:, 1] - x[:, 0]
    over = np.triu(common / (wide[:, None] + wide - common) > 0.5, 1)
    assert mask.view(np.uint64).tolist() == [sum(1 << int(i) for i in np.flatnonzero(row)) for row in over]


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_device_would_not_take(cache: Path, name: str) -> None:
    signature, body = REFUSED[name].split("|")
    source = f'extern "C" __global__ void k({signature}) {{\n{body}\n}}'
    with pytest.raises(BadRequestError, match="kernel 'k' does not compile: ") as caught:
        EmulatedModule(source, cache=cache).kernel("k", parse_signature("k", signature))
    assert "opbox" not in str(caught.value)
