"""Work that follows from values, and not from sizes: bounded before it begins, and in pieces between which it stops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opbox_ops import pausing
from opbox_ops.pausing import in_one_piece
from opbox_protocol.errors import CancelledError, LimitError
from opbox_service.engine import Engine
from opbox_service.settings import Settings
from opbox_service.task import MAX_CALL_MULTIPLICATIONS, Task, running
from opbox_service.turns import Turn
from tests.contract.live import symbol, var

F32 = np.float32
IMAGE = np.ones((1, 4, 9, 9), F32)
ROI = np.array([[0, 0, 0, 8, 8]], F32)
ROTATED = np.array([[0, 4, 4, 5 + i, 4, 30 * i] for i in range(4)], F32)
AT_THE_CORNER = np.array([1, 0, 0, 1, 1, 1], F32)
KERNEL = np.ones((1, 1, 3, 3), F32)
BINS = {"pooled_size": (2, 2), "spatial_scale": 1}
PARTS = {"spatial_scale": 1, "output_dim": 1, "group_size": 2, "pooled_size": 2, "no_trans": True}
STOPPED_AT = 5
"""The number of the pause at which a call is stopped: it has at least as many, and none after that."""

LONG: list[tuple[str, dict[str, Any], list[np.ndarray]]] = [
    ("_contrib_RROIAlign", {**BINS, "spatial_scale": 600}, [IMAGE, ROTATED * AT_THE_CORNER]),
    ("_contrib_RROIAlign", {**BINS, "sampling_ratio": 2800}, [IMAGE, ROTATED]),
    ("_contrib_ROIAlign", {**BINS, "sample_ratio": 5000, "position_sensitive": True}, [IMAGE, ROI]),
    ("_contrib_DeformablePSROIPooling", {**PARTS, "sample_per_part": 100}, [IMAGE, np.repeat(ROI, 3000, 0)]),
    ("Correlation", {"kernel_size": 2001, "max_displacement": 1, "pad_size": 1003}, [IMAGE, IMAGE]),
    ("Correlation", {"kernel_size": 301, "max_displacement": 20, "pad_size": 180}, [IMAGE, IMAGE]),
    ("ROIPooling", {"pooled_size": (1500, 1500), "spatial_scale": 1}, [IMAGE, np.repeat(ROI, 8, 0)]),
    (
        "RNN",
        {"state_size": 1, "num_layers": 60_000, "mode": "rnn_tanh"},
        [np.ones((1, 1, 1), F32), np.ones(240_000, F32), np.ones((60_000, 1, 1), F32)],
    ),
]
LONG += [
    ("_arange", {"start": 0, "stop": 10**9, "dtype": "int8"}, []),
    ("_linspace", {"start": 0, "stop": 1, "num": 10**9, "dtype": "int8"}, []),
    ("Convolution", {"kernel": (3, 3), "num_filter": 1, "pad": (8000, 8000), "no_bias": True}, [IMAGE[:, :1], KERNEL]),
]
"""Their outputs are a gigabyte each."""
MANY = np.ones(1 << 21, F32)
MATRICES = np.broadcast_to(np.eye(3, dtype=F32), (2_000_000, 3, 3)).copy()
LONG += [
    ("exp", {}, [MANY]),
    ("gammaln", {}, [MANY]),
    ("broadcast_add", {}, [np.ones((2, 1, 4), F32), np.ones((1, 1 << 18, 1), F32)]),
    ("hard_sigmoid", {}, [MANY]),
    ("_random_normal", {"shape": (1 << 21,)}, []),
    ("_random_poisson", {"shape": (1 << 21,), "dtype": "float16"}, []),
    ("_random_randint", {"low": 0, "high": 9, "shape": (1 << 21,)}, []),
    ("_sample_gamma", {"shape": (1 << 10,)}, [np.ones(1 << 11, F32), np.ones(1 << 11, F32)]),
    ("_sample_uniform", {"shape": (1 << 21,)}, [np.zeros(1, F32), np.ones(1, F32)]),
    ("argsort", {}, [np.ones((1 << 11, 1 << 10), F32)]),
    ("sort", {"axis": 0, "is_ascend": False}, [np.ones((1 << 11, 1 << 12), F32)]),
    ("_linalg_inverse", {}, [MATRICES]),
    ("_linalg_potrf", {}, [MATRICES]),
    ("_linalg_syevd", {}, [MATRICES]),
    ("_linalg_gelqf", {}, [MATRICES]),
    ("_linalg_det", {}, [MATRICES]),
    ("_linalg_det", {}, [np.eye(600, dtype=F32)]),
    ("_linalg_slogdet", {}, [np.eye(600, dtype=F32)]),
    ("dot", {}, [np.ones((4096, 4096), F32), np.ones((4096, 4096), F32)]),
    ("batch_dot", {}, [np.ones((2, 4096, 4096), F32), np.ones((2, 4096, 4096), F32)]),
    (
        "RNN",
        {"state_size": 1, "num_layers": 1, "mode": "rnn_tanh"},
        [np.ones((400_000, 1, 1), F32), np.ones(4, F32), np.ones((1, 1, 1), F32)],
    ),
]
BOXES = np.sort(np.random.default_rng(0).random((1, 1 << 18, 4), F32))
LABELS = np.concatenate([np.zeros((8, 4, 1), F32), BOXES[:, :32].reshape(8, 4, 4)], axis=2)
PROPOSED = {"scales": (8,), "ratios": (1,), "threshold": 1, "rpn_pre_nms_top_n": 1 << 14, "rpn_post_nms_top_n": 1 << 14}
SOME = np.random.default_rng(0).random((8, 4, 128, 128), F32)
LONG += [
    ("_contrib_MultiBoxTarget", {}, [BOXES, LABELS, np.ones((8, 2, 1 << 18), F32)]),
    ("_contrib_MultiBoxTarget", {}, [BOXES, LABELS.reshape(1, 32, 5), np.ones((1, 2, 1 << 18), F32)]),
    ("_contrib_MultiProposal", PROPOSED, [SOME[:, :2], SOME, np.full((8, 3), 2000, F32)]),
    ("_contrib_MultiProposal", PROPOSED, [SOME[:1, :2], SOME[:1], np.full((1, 3), 2000, F32)]),
    (
        "_contrib_PSROIPooling",
        {k: v for k, v in PARTS.items() if k != "no_trans"},
        [np.ones((8, 4, 256, 256), F32), ROI],
    ),
    ("_linalg_trsm", {}, [np.eye(3000, dtype=F32), np.ones((3000, 2000), F32)]),
    ("_linalg_trsm", {"rightside": True}, [MATRICES[:2000].reshape(-1, 3, 3)[:1], np.ones((1, 100_000, 3), F32)]),
]
LARGE: list[tuple[str, dict[str, Any], list[np.ndarray], str]] = [
    ("_contrib_ROIAlign", BINS, [IMAGE, np.zeros(((1 << 20) + 1, 5), F32)], "at most 1,048,576 regions"),
    ("_contrib_RROIAlign", {**BINS, "sampling_ratio": 2**40}, [IMAGE, ROTATED], "134,217,728 samples in all"),
    ("_contrib_ROIAlign", {**BINS, "sample_ratio": 10**6}, [IMAGE, ROI], "134,217,728 samples in all"),
    ("_contrib_DeformablePSROIPooling", {**PARTS, "sample_per_part": 2000}, [IMAGE, ROI], "samples of a region"),
    ("_contrib_DeformablePSROIPooling", {**PARTS, "sample_per_part": 10**9}, [IMAGE, ROI], "samples of a region"),
    (
        "_contrib_DeformablePSROIPooling",
        {**PARTS, "sample_per_part": 120},
        [IMAGE, np.repeat(ROI, 4000, 0)],
        "samples in all",
    ),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    fresh = Engine(Settings(max_session_bytes=5 << 30))
    yield fresh
    fresh.close()


def forward(engine: Engine, op: str, attrs: dict[str, Any], arrays: list[np.ndarray], task: Task) -> None:
    """Run one operator as `task`; the error that it ended with is raised."""
    inputs = {f"in{i}": array for i, array in enumerate(arrays)}
    texts = {key: str(value) for key, value in attrs.items()}
    graph = symbol(*map(var, inputs), (op, "y", texts, list(range(len(inputs)))))
    call = replace(engine.read("POST", "/v1/forward", {"graph": graph}, inputs), task=task)
    answers: list[Any] = []
    assert engine.begin(call, answers.append) is None
    if isinstance(answers[0], BaseException):
        raise answers[0]


class Pauses:
    """Counts the pauses of steps, and stops the task at the PIECESth; a step without any runs to its end."""

    def __init__(self, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._task = task
        self._before = pausing._at_pause
        monkeypatch.setattr(pausing, "_at_pause", self._at_pause)

    def _at_pause(self) -> None:
        self.count += 1
        if self.count == STOPPED_AT:
            self._task.stop(CancelledError("it was cancelled"))
        self._before()


@pytest.mark.parametrize(("op", "attrs", "arrays"), LONG, ids=lambda value: str(value)[:60])
def test_a_long_step_stops_between_its_pieces(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    attrs: dict[str, Any],
    arrays: list[np.ndarray],
) -> None:
    task = Task()
    pauses = Pauses(task, monkeypatch)
    with pytest.raises(CancelledError, match="it was cancelled"):
        forward(engine, op, attrs, arrays, task)
    assert pauses.count == STOPPED_AT


@pytest.mark.parametrize(("op", "attrs", "arrays", "words"), LARGE, ids=lambda value: str(value)[:60])
def test_work_is_bounded_before_it_begins(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    attrs: dict[str, Any],
    arrays: list[np.ndarray],
    words: str,
) -> None:
    task = Task()
    pauses = Pauses(task, monkeypatch)
    with pytest.raises(LimitError, match=words):
        forward(engine, op, attrs, arrays, task)
    assert not pauses.count, "no piece of the work was begun"


def eigenvectors(engine: Engine, n: int, task: Task) -> None:
    forward(engine, "_linalg_syevd", {}, [np.eye(n, dtype=F32)], task)


class PlaceOf(Turn):
    """A turn that notes whether its place was lent."""

    __slots__ = ("lent_times",)

    def __init__(self) -> None:
        self.lent_times = 0
        self.wanted = False

    @contextlib.contextmanager
    def lent(self, check: Callable[[], None]) -> Iterator[None]:
        check()
        self.lent_times += 1
        yield


@pytest.mark.parametrize(("n", "times"), [(64, 0), (800, 1)])
def test_a_library_s_call_lends_its_place_where_it_is_long(engine: Engine, n: int, times: int) -> None:
    task, turn = Task(), PlaceOf()
    task.turn = turn
    eigenvectors(engine, n, task)
    assert turn.lent_times == times


def test_a_library_s_call_is_bounded_where_others_wait(engine: Engine) -> None:
    with running(Task()):
        in_one_piece(MAX_CALL_MULTIPLICATIONS + 1)  # nobody else waits for an engine in the own process
    task = Task()
    task.turn = PlaceOf()
    with running(task), pytest.raises(LimitError, match="4,398,046,511,104 multiplications in a library's call"):
        in_one_piece(MAX_CALL_MULTIPLICATIONS + 1)
    with running(task), in_one_piece(MAX_CALL_MULTIPLICATIONS):
        pass


@pytest.mark.parametrize("scale", [float("inf"), 1e30, 500.0])
def test_a_region_beyond_its_image_takes_no_samples(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    task = Task()
    pauses = Pauses(task, monkeypatch)
    forward(
        engine, "_contrib_RROIAlign", {**BINS, "spatial_scale": scale, "sampling_ratio": 2800}, [IMAGE, ROTATED], task
    )
    assert pauses.count < STOPPED_AT
