"""Convolutions by oneDNN of a few images at a time: the values of the whole batch, and a stop between the pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opbox_ops import pausing
from opbox_ops.cpu.computes import by_images
from opbox_service.engine import Engine
from opbox_service.settings import Settings
from opbox_service.task import Task, running
from tests.contract.live import symbol, var
from tests.load.test_pauses import PlaceOf
from tests.machine import needs_onednn

pytestmark = needs_onednn

BATCH = 7
TWO = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 8}
NETWORKS: list[tuple[str, str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ("two dimensions", "Convolution", TWO, (BATCH, 4, 9, 8), (8, 4, 3, 3)),
    ("groups, strides", "Convolution", {**TWO, "num_group": 2, "stride": (2, 1)}, (BATCH, 4, 9, 8), (8, 2, 3, 3)),
    ("channels last", "Convolution", {**TWO, "layout": "NHWC"}, (BATCH, 9, 8, 12), (8, 3, 3, 12)),
    ("1 x 1", "Convolution", {"kernel": (1, 1), "num_filter": 8}, (BATCH, 16, 5, 5), (8, 16, 1, 1)),
    ("one dimension", "Convolution", {"kernel": (3,), "num_filter": 4}, (BATCH, 4, 20), (4, 4, 3)),
    ("three", "Convolution", {"kernel": (2, 3, 3), "num_filter": 4}, (BATCH, 3, 5, 6, 7), (4, 3, 2, 3, 3)),
    ("deconvolution", "Deconvolution", {**TWO, "num_filter": 4}, (BATCH, 8, 9, 8), (8, 4, 3, 3)),
]


@pytest.fixture
def engine() -> Iterator[Engine]:
    fresh = Engine(Settings())
    yield fresh
    fresh.close()


def gradients(engine: Engine, op: str, attrs: dict[str, Any], data: tuple[int, ...], weight: tuple[int, ...]) -> Any:
    """All outputs and gradients of a layer with a bias, of the same numbers each time."""
    source = np.random.default_rng(1)
    shapes = {"data": data, "weight": weight, "bias": (attrs["num_filter"],)}
    arrays = {name: source.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    texts = {key: str(value) for key, value in attrs.items()} | {"no_bias": "False"}
    graph = symbol(*map(var, arrays), (op, "y", texts, [0, 1, 2]), ("MakeLoss", "loss", {}, [3]))
    answers: list[Any] = []
    call = engine.read("POST", "/v1/backward", {"graph": graph, "parameters": {"is_train": True}}, arrays)
    assert engine.begin(call, answers.append) is None
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return {name: np.array(value) for name, value in answers[0].tensors.items()}


@pytest.mark.parametrize("images", [1, 2, 3])
@pytest.mark.parametrize(("name", "op", "attrs", "data", "weight"), NETWORKS, ids=[row[0] for row in NETWORKS])
def test_pieces_give_what_the_whole_gives(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    op: str,
    attrs: dict[str, Any],
    data: tuple[int, ...],
    weight: tuple[int, ...],
    images: int,
) -> None:
    cut: list[int] = []
    whole = gradients(engine, op, attrs, data, weight)
    multiplications: list[int] = []
    before = by_images.by_images

    def noting(make: Any, batch: int, of_image: int, *rest: Any) -> Any:
        multiplications.append(of_image)
        monkeypatch.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", images * of_image)
        kernel = before(make, batch, of_image, *rest)
        cut.append(isinstance(kernel, by_images.ByImages))
        return kernel

    monkeypatch.setattr("opbox_ops.cpu.computes.convolution.by_images", noting)
    fresh = Engine(Settings())
    pieces = gradients(fresh, op, attrs, data, weight)
    fresh.close()
    assert any(cut), "nothing was cut"
    assert pieces.keys() == whole.keys()
    for key, values in whole.items():
        # Sums over the batch are in another order: float32's rounding of some hundred terms of size 1.
        np.testing.assert_allclose(pieces[key], values, rtol=1e-4, atol=1e-4)


class Looks:
    """Counts the pauses, and the library calls that lend their place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses = 0
        monkeypatch.setattr(pausing, "_at_pause", self._at_pause)

    def _at_pause(self) -> None:
        self.pauses += 1


def test_a_batch_stops_between_its_pieces(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", 9 * 8 * 8 * 4 * 9)  # one image
    looks = Looks(monkeypatch)
    gradients(engine, *NETWORKS[0][1:])
    assert looks.pauses >= 3 * BATCH


def test_an_image_that_takes_long_lends_its_place(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", 1000)  # no image is a piece
    monkeypatch.setattr(pausing, "LONG", 1000)
    turn, task = PlaceOf(), Task()
    task.turn = turn
    begin, name = engine.begin, NETWORKS[1]  # groups: oneDNN computes all three

    def in_turn(call: Any, done: Any) -> Any:
        call.task.turn = turn
        with running(call.task):
            return begin(call, done)

    monkeypatch.setattr(engine, "begin", in_turn)
    gradients(engine, *name[1:])
    assert turn.lent_times >= 3 * BATCH
