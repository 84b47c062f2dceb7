"""Faults under load: a worker that is killed, and models that are loaded again and again. No answer is wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.conftest import INPUT, PATIENCE_S, loaded
from tests.models.folders import CLASSES, FEATURES, expected, perceptron, save

RELOADS_S = 600.0 if "OPBOX_SOAK" in os.environ else 2.0
"""Seconds of load with reloads: `make soak` takes ten minutes."""
RELOAD_EVERY_S = 1.0 if "OPBOX_SOAK" in os.environ else 0.2
CLIENTS = 3
X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


class Load:
    """Clients of one model that send requests without a pause.

    Attributes:
        statuses: how often each status was answered.
        values: the different outputs, as bytes.
        errors: what went wrong in a client.
    """

    def __init__(self, server: Live, model: str) -> None:
        self.model = model
        self.statuses: dict[int, int] = {}
        self.values: set[bytes] = set()
        self.errors: list[Exception] = []
        self._url = f"{server.url}/v2/models/{model}/infer"
        self._stop = threading.Event()
        self._answered = threading.Condition()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]

    def _run(self) -> None:
        tensor = {"name": "data", "shape": list(X.shape), "datatype": "FP32", "data": X.reshape(-1).tolist()}
        headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
        with httpx.Client(headers=headers, timeout=PATIENCE_S) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(self._url, json={"inputs": [tensor]})
                    values = answer.json()["outputs"][0]["data"] if answer.status_code == 200 else None
                except Exception as error:
                    self.errors.append(error)
                    return
                with self._answered:
                    self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
                    if values is not None:
                        self.values.add(np.array(values, np.float32).tobytes())
                    self._answered.notify_all()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Clients run during the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until answers have made something true."""
        with self._answered:
            assert self._answered.wait_for(lambda: until() or bool(self.errors), PATIENCE_S)
        assert not self.errors

    def count(self, status: int) -> int:
        return self.statuses.get(status, 0)


def test_a_worker_is_killed_under_load(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    names = ["plain", "other"]  # the CRCs of these names are odd and even: each has a worker of its own
    for name in names:
        save(folder / name, *perceptron(), INPUT)
    server = Live("process", tmp_path, OPBOX_MODELS=str(folder), OPBOX_WORKERS="2")
    loaded(server)
    loads = [Load(server, name) for name in names]
    with loads[0].running(), loads[1].running():
        for load in loads:
            load.wait(lambda load=load: load.count(200) >= 10)  # type: ignore[misc]
        victim = server.workers()[0]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        until = killed + PATIENCE_S
        while not any(load.count(503) for load in loads):
            assert time.monotonic() < until
            time.sleep(0.005)
        (hit,) = [load for load in loads if load.count(503)]
        (spared,) = [load for load in loads if load is not hit]
        answered, others = hit.count(200), spared.count(200)
        hit.wait(lambda: hit.count(200) > answered)
        print(f"the model was back after {time.monotonic() - killed:.2f} s")
        spared.wait(lambda: spared.count(200) > others)
    assert set(hit.statuses) == {200, 503}
    assert set(spared.statuses) == {200}
    for load in loads:
        assert load.values == {expected(X).tobytes()}
    assert victim not in server.workers()
    assert server.stop() == 0


@pytest.mark.parametrize("batched", [False, True])
def test_reloads_in_long_use(tmp_path: Path, batched: bool) -> None:
    folder = tmp_path / "models"
    toml = ("max_batch = 4\n" if batched else "") + INPUT
    save(folder / "plain", *perceptron(), toml)
    server = Live("process", tmp_path, OPBOX_MODELS=str(folder))
    loaded(server)
    load, reloads, begun = Load(server, "plain"), 0, time.monotonic()
    with load.running():
        load.wait(lambda: load.count(200) >= 10)
        while time.monotonic() - begun < RELOADS_S or reloads < 4:
            reloads += 1
            save(folder / "plain", *perceptron(1.0 + reloads % 2), toml)
            answer = server.clients["boss"].post("/v2/repository/models/plain/load")
            assert answer.status_code == 200, answer.text
            answered = load.count(200)
            load.wait(lambda answered=answered: load.count(200) >= answered + CLIENTS)  # type: ignore[misc]
            time.sleep(max(0.0, begun + reloads * RELOAD_EVERY_S - time.monotonic()))
    assert set(load.statuses) == {200}
    if batched:  # a product of more rows adds in another order
        for values in load.values:
            array = np.frombuffer(values, np.float32).reshape(3, CLASSES)
            assert any(np.allclose(array, expected(X, scale), rtol=0, atol=1e-6) for scale in (1.0, 2.0))
    else:
        assert load.values == {expected(X, scale).tobytes() for scale in (1.0, 2.0)}
    assert server.stop() == 0
