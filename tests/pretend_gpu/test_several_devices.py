"""A session on two GPUs: batches that compute on both, and copies from one to the other on their streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for, copy_between, staging
from opbox_protocol.errors import (
    BadRequestError,
    ConflictError,
    MXNetError,
    NotFoundError,
    QuotaError,
    UnsupportedError,
)
from opbox_service.device_time import DeviceTime
from opbox_service.engine import Engine
from opbox_service.settings import Settings

BOTH = ("gpu:0", "gpu:1")
LARGE = staging.COPY_BYTES // 4 + 3


@pytest.fixture
def engine(gpu: Any) -> Iterator[Engine]:
    engine = Engine(Settings(max_device_bytes=1 << 30))
    yield engine
    engine.close()


@pytest.fixture
def run(engine: Engine) -> Callable[..., dict[str, np.ndarray]]:
    """Run a batch in a session of both, and return what it fetches."""
    id = engine.call("POST", "/v1/sessions", {"devices": list(BOTH)})[0]["id"]

    def call(*commands: dict[str, Any], **tensors: np.ndarray) -> dict[str, np.ndarray]:
        return engine.call("POST", f"/v1/sessions/{id}/commands", {"commands": list(commands)}, tensors)[1]

    return call


def on(number: int) -> dict[str, Any]:
    return {"do": "use_device", "device": f"gpu:{number}"}


def put(id: int, name: str = "x") -> dict[str, Any]:
    return {"do": "put", "id": id, "tensor": name}


def fetch(id: int) -> dict[str, Any]:
    return {"do": "fetch", "id": id, "as": f"a{id}"}


def copy(source: int, to: int) -> dict[str, Any]:
    return {"do": "copy", "from": source, "to": to}


def invoke(op: str, inputs: list[int], outputs: list[int], **attrs: Any) -> dict[str, Any]:
    return {"do": "invoke", "op": op, "attrs": attrs, "inputs": inputs, "outputs": outputs}


def test_a_batch_computes_on_both_and_copies_between_them(gpu: Any, run: Callable[..., Any]) -> None:
    """However late the streams are: a copy waits for what it reads, and what follows it waits for the copy."""
    x = np.arange(LARGE, dtype="f")
    with gpu.deferred():
        fetched = run(
            put(1),
            invoke("_plus_scalar", [1], [2], scalar=1),
            on(1),
            copy(2, 3),
            invoke("_mul_scalar", [3], [4], scalar=2),
            on(0),
            invoke("_plus_scalar", [1], [2], scalar=5) | {"into": True},  # after the copy has read it
            copy(4, 5),
            invoke("elemwise_add", [5, 2], [6]),
            fetch(6),
            on(1),
            fetch(3),
            x=x,
        )
    np.testing.assert_array_equal(fetched["a6"], (x + 1) * 2 + x + 5)
    np.testing.assert_array_equal(fetched["a3"], x + 1)


def test_a_batch_begins_on_the_first_device(run: Callable[..., Any]) -> None:
    run(on(1), put(1), x=np.ones(3, "f"))
    run(put(2), copy(1, 3), x=np.ones(3, "f"))
    with pytest.raises(NotFoundError, match="array 2: expected one on gpu:1, where this command runs, got an array on"):
        run(on(1), invoke("_plus_scalar", [2], [4], scalar=1))


@pytest.mark.parametrize("early", ["neither", "source", "target"])
def test_memory_of_a_copied_array_is_used_again_behind_the_copy(gpu: Any, early: str) -> None:
    far, near = (backend_for(name).for_session() for name in BOTH)
    x = np.arange(100, dtype="f")  # goes to its place by its own stream
    with gpu.deferred() as streams:
        if early != "neither":
            streams.hasty.add((far if early == "source" else near).stream.ptr)
        with near.scope():
            target = near.empty(x.shape, "f")
        for step in range(3):
            source = far.put(x + step)
            copy_between(source, target, far, near)
            del source
        del step
        others = [far.put(x * 0 - 1) for _ in range(2)]
        np.testing.assert_array_equal(near.get(target), x + 2)
    assert len(others) == 2
    far.close()
    near.close()


@pytest.mark.parametrize("size", [(0, 3), (), (4, 6)])
def test_types_and_strides_of_copies(gpu: Any, size: tuple[int, ...]) -> None:
    far, near = (backend_for(name).for_session() for name in BOTH)
    host = np.arange(np.prod(size, dtype=int), dtype="f").reshape(size)
    with gpu.deferred():
        source = far.put(host)
        target = near.put(np.zeros(size[::-1], "int32"))
        copy_between(source, target.T, far, near)
        np.testing.assert_array_equal(near.get(target), host.T.astype("int32"))
        copy_between(source.T, target, far, near)
        np.testing.assert_array_equal(near.get(target), host.T.astype("int32"))
    far.close()
    near.close()


def test_direct_access_is_asked_for_where_the_driver_gives_it(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from opbox_ops.backend import peer

    runtime = backend_for("gpu:0").xp.cuda.runtime
    enabled = []
    monkeypatch.setattr(runtime, "deviceCanAccessPeer", lambda one, other: 1)
    monkeypatch.setattr(
        runtime, "deviceEnablePeerAccess", lambda other: enabled.append((runtime.getDevice(), other)), raising=False
    )
    peer._enable_access.cache_clear()
    far, near = (backend_for(name).for_session() for name in BOTH)
    for _ in range(2):
        with near.scope():
            target = near.empty((3,), "f")
        copy_between(far.put(np.ones(3, "f")), target, far, near)
    assert enabled == [(1, 0)]
    peer._enable_access.cache_clear()
    far.close()
    near.close()


def test_a_session_gets_a_device_when_a_batch_first_names_it(engine: Engine) -> None:
    session = engine.sessions.create("local", device="gpu:1")
    path = f"/v1/sessions/{session.id}/commands"
    engine.call("POST", path, {"commands": [on(0), put(1)]}, {"x": np.ones(1 << 18, "f")})
    state = engine.call("GET", f"/v1/sessions/{session.id}")[0]
    assert (state["device"], state["devices"]) == ("gpu:1", ["gpu:1", "gpu:0"])
    with pytest.raises(UnsupportedError, match="'gpu:7' is not available: this machine has fewer GPUs"):
        engine.call("POST", path, {"commands": [{"do": "use_device", "device": "gpu:7"}]})
    assert engine.call("GET", f"/v1/sessions/{session.id}")[0]["devices"] == ["gpu:1", "gpu:0"]


def _with_the_device(gpu: Any, error: Exception) -> Exception:
    """The error; the end of its block fails too, whose error says less."""
    gpu.fail_next("setDevice", gpu.ILLEGAL_ADDRESS)
    return error


def test_a_scope_leaves_things_as_they_were(gpu: Any, cupy: Any) -> None:
    first, second = backend_for("gpu:0").for_session(), backend_for("gpu:1").for_session()

    def current() -> tuple[int, int]:
        return cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr

    before = current()
    with first.scope():
        assert current() == (0, first.stream.ptr)
        with second.scope(), first.scope():
            assert current() == (0, first.stream.ptr)
        assert current() == (0, first.stream.ptr)
        with pytest.raises(KeyError, match="own"), second.scope():
            raise _with_the_device(gpu, KeyError("own"))
        gpu.reset()
        cupy.cuda.runtime.setDevice(0)
    assert current() == before
    first.close()
    second.close()


def test_memory_is_counted_where_it_is(engine: Engine, run: Callable[..., Any]) -> None:
    nbytes = 1 << 20
    x = np.ones(nbytes // 4, "f")
    (state,) = engine.call("GET", "/v1/sessions")[0]["sessions"]
    before = state["bytes_by_device"]
    run(put(1), on(1), copy(1, 2), copy(1, 3), x=x)
    (state,) = engine.call("GET", "/v1/sessions")[0]["sessions"]
    more = {name: state["bytes_by_device"][name] - before[name] for name in BOTH}
    assert more == {"gpu:0": nbytes + staging.UPLOAD_RING, "gpu:1": 2 * nbytes}
    assert state["bytes"] == sum(state["bytes_by_device"].values())
    assert state["objects"] == 3
    rows = {row["device"]: row["used_bytes"] for row in engine.devices()}
    assert {name: rows[name] for name in BOTH} == state["bytes_by_device"]
    assert sorted(engine.sessions.memory()) == sorted(("local", *row) for row in state["bytes_by_device"].items())
    run({"do": "free", "ids": [1, 2, 3]})
    (state,) = engine.call("GET", "/v1/sessions")[0]["sessions"]
    assert (state["objects"], state["bytes_by_device"]["gpu:1"]) == (0, before["gpu:1"])


def test_each_device_has_the_owners_quota(gpu: Any) -> None:
    engine = Engine(Settings(max_device_bytes=1 << 30, max_owner_bytes=8 << 20))
    try:
        session = engine.sessions.create("local", devices=BOTH)
        path = f"/v1/sessions/{session.id}/commands"
        zeros = {"do": "zeros", "shape": [6 << 20], "dtype": "int8"}
        engine.call("POST", path, {"commands": [{**zeros, "ids": [1]}, on(1), {**zeros, "ids": [2]}]})
        with pytest.raises(QuotaError, match="memory of all your sessions"):
            engine.call("POST", path, {"commands": [on(1), {**zeros, "ids": [3]}]})
    finally:
        engine.close()


def test_time_is_counted_on_each_device(engine: Engine, run: Callable[..., Any]) -> None:
    run(put(1), on(1), put(2), *[invoke("_plus_scalar", [2], [k], scalar=1) for k in range(3, 9)], x=np.ones(3, "f"))
    sums: dict[tuple[str, str], DeviceTime] = engine.device_times.sums()
    assert set(sums) == {("local", name) for name in BOTH}
    assert all(time.compute_s > 0 for time in sums.values())


def test_random_numbers_are_those_of_sessions_on_one_device(engine: Engine, run: Callable[..., Any]) -> None:
    draw = invoke("_random_uniform", [], [1], shape="(5,)")
    numbers = run(draw, fetch(1), on(1), {**draw, "outputs": [2]}, fetch(2))
    for id, name in enumerate(BOTH, 1):
        alone = engine.call("POST", "/v1/sessions", {"device": name})[0]["id"]
        path = f"/v1/sessions/{alone}/commands"
        _, own = engine.call("POST", path, {"commands": [draw, fetch(1)]})
        np.testing.assert_array_equal(numbers[f"a{id}"], own["a1"])


def test_numbers_of_arrays_are_the_whole_sessions(run: Callable[..., Any]) -> None:
    run(put(1), x=np.ones(3, "f"))
    with pytest.raises(ConflictError, match="id 1 is taken"):
        run(on(1), put(1), x=np.ones(3, "f"))


def test_an_error_on_one_device_stops_the_batch_and_frees_on_both(engine: Engine, run: Callable[..., Any]) -> None:
    run(put(1), on(1), put(2), x=np.ones(3, "f"))
    with pytest.raises(NotFoundError, match="array 9: expected one of this session, got nothing"):
        run(on(1), invoke("_plus_scalar", [9], [3], scalar=1), {"do": "free", "ids": [1, 2]})
    (state,) = engine.call("GET", "/v1/sessions")[0]["sessions"]
    assert state["objects"] == 0
    run(put(1), fetch(1), x=np.ones(3, "f"))


@pytest.mark.parametrize(
    ("body", "error", "sentence"),
    [
        ({"devices": []}, BadRequestError, "devices: expected the name of a device or more, got an empty list"),
        ({"devices": ["gpu", "gpu:0"]}, BadRequestError, "devices: expected each device once, got 'gpu:0' twice"),
        (
            {"devices": ["gpu:0", "cpu"]},
            BadRequestError,
            "devices: expected GPUs alone, got 'cpu' among 2: make a session of its own for the CPU",
        ),
        ({"devices": ["gpu:0", "gpu:2"]}, UnsupportedError, "device 'gpu:2' is not available"),
        ({"devices": ["gpu:0", "tpu"]}, UnsupportedError, "device 'tpu': expected 'cpu', 'gpu' or one with a number"),
        (
            {"device": "gpu:0", "devices": ["gpu:1"]},
            BadRequestError,
            "device: expected either device or devices, got both",
        ),
        ({"devices": "gpu:0"}, BadRequestError, "devices: expected"),
    ],
)
def test_devices_that_no_session_has(engine: Engine, body: Any, error: type[MXNetError], sentence: str) -> None:
    with pytest.raises(error) as caught:
        engine.call("POST", "/v1/sessions", body)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert not engine.sessions.all()
    assert not any(used for _, _, used in engine.sessions.memory())


@pytest.mark.parametrize(
    ("device", "other", "sentence"),
    [
        ("cpu", "gpu:0", "expected the CPU, which the session is on, got 'gpu:0': make a session of its own for a GPU"),
        ("gpu:0", "cpu", "expected a GPU, which the session is on, got 'cpu': make a session of its own for the CPU"),
    ],
)
def test_neither_joins_the_other(engine: Engine, device: str, other: str, sentence: str) -> None:
    id = engine.call("POST", "/v1/sessions", {"device": device})[0]["id"]
    with pytest.raises(BadRequestError) as caught:
        engine.call("POST", f"/v1/sessions/{id}/commands", {"commands": [{"do": "use_device", "device": other}]})
    assert str(caught.value) == f"use_device: {sentence}"
