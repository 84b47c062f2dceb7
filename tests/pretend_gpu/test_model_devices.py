"""A model on several devices: each has its parameters, and a request goes to the least busy one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.carriers import AnswerLimit
from opbox_service.engine import Engine
from opbox_service.models.loaded_model import LoadedModel
from opbox_service.models.model_config import read_config
from opbox_service.models.model_files import find_files
from opbox_service.models.model_host import MODELS
from opbox_service.models.reference import ModelReference
from opbox_service.settings import Settings
from tests.models.conftest import PATIENCE_S
from tests.models.folders import FEATURES, ROUNDING, expected, perceptron, save
from tests.models.uploads import INPUT

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
BOTH = 'device = ["gpu:0", "gpu:1"]\n'


@pytest.fixture
def engine(gpu: Any) -> Iterator[Engine]:
    engine = Engine(Settings(max_device_bytes=1 << 30))
    yield engine
    engine.close()


def reference(folder: Path, toml: str) -> ModelReference:
    """A model in a folder."""
    save(folder / "m", *perceptron(), toml + INPUT)
    config = read_config(folder / "m" / "model.toml").model_dump(exclude_unset=True)
    return ModelReference("m", 1, str(folder / "m"), find_files(folder / "m").stamp, config)


def output_of(model: LoadedModel) -> np.ndarray:
    """The model's output for X."""
    seen: list[Any] = []
    answered = threading.Event()

    def take(outputs: dict[str, np.ndarray]) -> None:
        seen.append(outputs["softmax_output"].copy())
        answered.set()

    def fail(error: Exception) -> None:
        seen.append(error)
        answered.set()

    model.infer("ann", {"data": X}, ["softmax_output"], take, fail, AnswerLimit())
    assert answered.wait(PATIENCE_S)
    return np.asarray(seen[0])


@pytest.mark.parametrize("toml", ["", "max_batch = 8\n"], ids=["alone", "batched"])
def test_requests_go_to_both_devices(engine: Engine, tmp_path: Path, toml: str) -> None:
    model = reference(tmp_path, BOTH + toml)
    engine.models.get(model)
    assert engine.models.devices(model) == ["gpu:0", "gpu:1"]
    used: set[str] = set()
    until = time.monotonic() + PATIENCE_S

    def requests() -> list[np.ndarray]:
        outputs = []
        while len(used) < 2 and time.monotonic() < until:
            chosen = engine.models.get(model)
            used.add(chosen.device)
            outputs.append(output_of(chosen))
        return outputs

    with ThreadPoolExecutor(4) as pool:
        outputs = [output for future in [pool.submit(requests) for _ in range(4)] for output in future.result()]
    assert used == {"gpu:0", "gpu:1"}
    for output in outputs:
        np.testing.assert_allclose(output, expected(X), rtol=0, atol=ROUNDING)
    assert engine.models.get(model).statistics.summary()["requests"] == len(outputs)
    assert all(engine.ledger.of(MODELS, device).used > 0 for device in ("gpu:0", "gpu:1"))
    engine.models.keep_only("m", [])
    assert all(engine.ledger.of(MODELS, device).used == 0 for device in ("gpu:0", "gpu:1"))


@pytest.mark.parametrize(
    ("toml", "kind", "sentence"),
    [
        ('device = ["gpu:0", "gpu:0"]\n', BadRequestError, "device: expected each device once"),
        ("device = []\n", BadRequestError, "device: expected each device once, and at least one"),
        ('device = ["gpu:0", "gpu:7"]\n', MXNetError, "gpu:7"),
    ],
)
def test_a_wrong_list_is_an_error(
    engine: Engine, tmp_path: Path, toml: str, kind: type[MXNetError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        engine.models.get(reference(tmp_path, toml))


def test_a_device_is_a_text(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"model.toml, line 1: device.*expected a device, or a list of devices"):
        reference(tmp_path, "device = [1]\n")
