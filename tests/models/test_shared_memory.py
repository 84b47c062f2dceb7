"""Shared memory: inputs and outputs of models that no socket carries, and what is no memory of the client's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as Segment
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_protocol import wire
from opbox_protocol.errors import BadRequestError, MXNetError, QuotaError, UnsupportedError
from opbox_service.models.shared_memory import SharedMemory
from opbox_service.models.shared_tensors import gathered
from tests.contract.live import Live
from tests.models.folders import CLASSES, FEATURES, ROUNDING, expected

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
LARGE = np.resize(X, (70_000, FEATURES))
"""More than the server copies at once."""
STATUS = "/v2/systemsharedmemory"


@pytest.fixture
def segment() -> Iterator[Segment]:
    segment = Segment(create=True, size=4 << 20)
    yield segment
    segment.close()
    segment.unlink()


@pytest.fixture
def registered(server: Live, segment: Segment) -> Iterator[Segment]:
    """A segment that ann has registered from byte 64 on, as `mine`."""
    body = {"key": segment.name, "offset": 64, "byte_size": segment.size - 64}
    answer = server.clients["ann"].post(f"{STATUS}/region/mine/register", json=body)
    assert answer.status_code == 200, answer.text
    yield segment
    assert server.clients["ann"].post(f"{STATUS}/unregister").status_code == 200


def shared(size: int, offset: int = 0, region: str = "mine") -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}


def request(x: np.ndarray, *, place: dict[str, Any], outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "inputs": [{"name": "data", "shape": list(x.shape), "datatype": "FP32", "parameters": place}]
    }
    return body if outputs is None else {**body, "outputs": outputs}


@pytest.mark.parametrize("x", [X, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("model", ["plain", "batched"])
def test_inputs_and_outputs(server: Live, registered: Segment, x: np.ndarray, model: str) -> None:
    np.ndarray(x.shape, np.float32, registered.buf, 64)[:] = x
    at, size = x.nbytes, 4 * len(x) * CLASSES
    outputs = [{"name": "softmax_output", "parameters": {"binary_data": False, **shared(size + 40, at)}}]
    answer = server.clients["ann"].post(
        f"/v2/models/{model}/infer", json=request(x, place=shared(x.nbytes), outputs=outputs)
    )
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    assert output["parameters"] == shared(size, at)
    assert (output["shape"], output["datatype"], "data" in output) == ([len(x), CLASSES], "FP32", False)
    values = np.ndarray((len(x), CLASSES), np.float32, registered.buf, 64 + at)
    assert not any(registered.buf[64 + at + size : 64 + at + size + 40])  # what is behind the values stays as it was
    np.testing.assert_allclose(values[:3], expected(X), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(values[-1], expected(x[-1:])[0], rtol=0, atol=ROUNDING)


def test_an_input_alone_and_an_output_alone(server: Live, registered: Segment) -> None:
    np.ndarray(X.shape, np.float32, registered.buf, 64)[:] = X
    listed = server.clients["ann"].post("/v2/models/plain/infer", json=request(X, place=shared(X.nbytes))).json()
    np.testing.assert_array_equal(
        np.reshape(listed["outputs"][0]["data"], (3, CLASSES)).astype(np.float32), expected(X)
    )
    wanted = {"outputs": [{"name": "softmax_output", "parameters": shared(36, 1000)}]}
    answer = server.call("POST", "/v2/models/plain/infer", wanted, {"data": X})  # our frames have gaps
    assert answer.status == 200, answer.header
    values = np.ndarray((3, CLASSES), np.float32, registered.buf, 1064)
    np.testing.assert_array_equal(values, expected(X))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (request(X, place=shared(48, region="yours")),
         "input 'data': shared memory region: expected one that you registered (mine), got 'yours'"),
        (request(X, place=shared(40)),
         "input 'data': shared_memory_byte_size: expected 48 by its shape and datatype, got 40"),
        (request(X, place={"shared_memory_region": "mine"}),
         "input 'data': expected shared_memory_byte_size beside shared_memory_region, got nothing"),
        (request(X, place=shared(-1)), "input 'data': shared_memory_byte_size: expected a number of bytes, got '-1'"),
        (request(X, place=shared(48, 4 << 20)),
         "input 'data': expected a place in the 4194240 bytes of shared memory region 'mine', got 48 bytes from byte "
         "4194304 on"),
        (request(X, place={**shared(48), "shared_memory_offset": "0"}),
         "input 'data': shared_memory_offset: expected a number of bytes, got '0'"),
        (request(X, place={**shared(48), "binary_data_size": 48}),
         "input 'data': expected values in one place, got them beside shared_memory_region too"),
        (request(X, place=shared(48), outputs=[{"name": "softmax_output", "parameters": shared(35)}]),
         "output 'softmax_output': shared_memory_byte_size: expected 36 or more, got 35"),
        (request(X, place=shared(48), outputs=[{"name": "softmax_output", "parameters": shared(36, region="yours")}]),
         "output 'softmax_output': shared memory region: expected one that you registered (mine), got 'yours'"),
    ],
)  # fmt: skip
def test_bad_places(server: Live, registered: Segment, body: dict[str, Any], sentence: str) -> None:
    answer = server.clients["ann"].post("/v2/models/plain/infer", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, sentence)


def test_a_segment_that_is_cut_is_an_error_of_the_request(server: Live, registered: Segment) -> None:
    os.truncate(f"/dev/shm/{registered.name}", 4096)
    for body in (
        request(X, place=shared(48)),
        {**request(X, place={}, outputs=[{"name": "softmax_output", "parameters": shared(36)}]), "inputs": [LISTED]},
    ):
        answer = server.clients["ann"].post("/v2/models/plain/infer", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"] == (
            "shared memory region 'mine': expected a segment of 4194304 bytes or more, got 4096: it has been cut "
            "since it was registered"
        )
    assert server.clients["ann"].get("/v2/health/live").status_code == 200
    assert Path(f"/dev/shm/{registered.name}").stat().st_size == 4096


LISTED = {"name": "data", "shape": list(X.shape), "datatype": "FP32", "data": X.tolist()}


def test_status_and_owners(server: Live, registered: Segment) -> None:
    ann, py = server.clients["ann"], server.clients["py"]
    row = {"name": "mine", "key": registered.name, "offset": 64, "byte_size": registered.size - 64}
    assert ann.get(f"{STATUS}/status").json() == ann.get(f"{STATUS}/region/mine/status").json() == [row]
    assert py.get(f"{STATUS}/status").json() == []
    assert py.get(f"{STATUS}/region/mine/status").status_code == 400
    assert py.post(f"{STATUS}/region/mine/unregister").status_code == 200  # there is none of its own
    assert py.post("/v2/models/plain/infer", json=request(X, place=shared(48))).status_code == 400
    again = ann.post(f"{STATUS}/region/mine/register", json={"key": registered.name, "byte_size": 8})
    assert again.json()["error"] == "shared memory region 'mine': expected a new name, got one that is registered"
    assert ann.post(f"{STATUS}/region/mine/unregister").status_code == 200
    assert ann.get(f"{STATUS}/status").json() == []
    assert "system_shared_memory" in ann.get("/v2").json()["extensions"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"byte_size": 8}, "key: expected a value, got nothing"),
        ({"key": 1, "byte_size": 8}, "key: expected a string, got 1"),
        ({"key": "a", "byte_size": 0}, "byte_size: expected 1 or more, got 0"),
        ({"key": "a", "byte_size": 8, "offset": -1}, "offset: expected 0 or more, got -1"),
        ({"key": "a", "byte_size": 8, "size": 1}, "unknown field 'size': expected key, offset, byte_size"),
        ({"key": "../etc/passwd", "byte_size": 8}, "key: expected the name of a shared memory segment that belongs"),
        ({"key": "nothing", "byte_size": 8}, "key: expected the name of a shared memory segment that belongs to "),
    ],
)  # fmt: skip
def test_bad_registrations(server: Live, body: dict[str, Any], sentence: str) -> None:
    answer = server.clients["ann"].post(f"{STATUS}/region/bad/register", json=body)
    assert (answer.status_code, sentence in answer.json()["error"]) == (400, True), answer.text


def test_a_client_on_another_machine_may_register_nothing(server: Live, segment: Segment) -> None:
    """The tests' proxy is this machine, whose word on its client is believed."""
    answer = server.clients["ann"].post(
        f"{STATUS}/region/far/register",
        json={"key": segment.name, "byte_size": 8},
        headers={"X-Forwarded-For": "203.0.113.9"},
    )
    assert answer.status_code == 403
    assert answer.json()["error"] == (
        f"POST {STATUS}/region/far/register: expected a client on the server's machine, got one at 203.0.113.9: send "
        "tensors as bytes"
    )


def test_memory_of_a_gpu(server: Live) -> None:
    ann = server.clients["ann"]
    assert ann.get("/v2/cudasharedmemory/status").json() == []
    body = {"raw_handle": {"b64": "AA=="}, "device_id": 0, "byte_size": 8}
    for answer in (
        ann.post("/v2/cudasharedmemory/region/a/register", json=body),
        ann.get("/v2/cudasharedmemory/region/a/status"),
    ):
        assert answer.status_code == 501
        assert answer.json()["error"].startswith(
            "CUDA shared memory: expected system shared memory, or tensors as bytes"
        )
    assert ann.post("/v2/cudasharedmemory/unregister").status_code == 200


# -- the regions themselves, with a folder of the test's in place of the system's


@pytest.fixture
def memory(tmp_path: Path) -> SharedMemory:
    (tmp_path / "good").write_bytes(bytes(100))
    (tmp_path / "sem.lock").write_bytes(bytes(100))
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return SharedMemory("own", 2, tmp_path)


@pytest.mark.parametrize(
    "key", ["link", "folder", "pipe", "..", ".", "", "/", "a/good", "//good", "sem.lock", "good\0", "x" * 256]
)
def test_what_is_no_segment(memory: SharedMemory, key: str) -> None:
    with pytest.raises(
        BadRequestError, match=r"^key: expected the name of a shared memory segment that belongs to user"
    ):
        memory.register("ann", "a", key, 0, 8)
    assert memory.status("ann") == []


def test_sizes_and_numbers_of_regions(memory: SharedMemory) -> None:
    with pytest.raises(
        BadRequestError, match="byte_size: expected at most the segment's 100 bytes, got 8 from byte 93 on"
    ):
        memory.register("ann", "a", "good", 93, 8)
    memory.register("ann", "a", "/good", 92, 8)
    memory.register("ann", "b", "good", 0, 100)
    memory.register("bob", "a", "good", 0, 100)
    with pytest.raises(QuotaError, match="shared memory regions: expected at most 2 of an owner, got one more"):
        memory.register("ann", "c", "good", 0, 8)
    memory.unregister("ann")
    assert [row["name"] for row in memory.status("bob")] == ["a"]


def test_segments_of_other_users_and_a_server_without(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(bytes(100))
    other = os.getuid() + 1
    with pytest.raises(BadRequestError, match=f"that belongs to user {other}, got 'good'"):
        SharedMemory(str(other), 2, tmp_path).register("ann", "a", "good", 0, 8)
    with pytest.raises(UnsupportedError, match="start it with OPBOX_SHARED_MEMORY=own"):
        SharedMemory("off", 2, tmp_path).register("ann", "a", "good", 0, 8)


def test_descriptors_are_closed(memory: SharedMemory, tmp_path: Path) -> None:
    def opened() -> int:
        """How many files of the test's folder are open; those of others come and go."""
        count = 0
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                count += str(entry.readlink()).startswith(str(tmp_path))
        return count

    for key in ("good", "folder", "pipe", "link"):
        with contextlib.suppress(MXNetError):
            memory.register("ann", "a", key, 0, 8)
    place = memory.place("ann", "input", "a", 0, 8)
    memory.unregister("ann", "a")
    place.write(memoryview(b"12345678"))
    assert opened() == 1
    del place
    assert opened() == 0


def test_a_request_without_regions_stays_as_it_is(memory: SharedMemory) -> None:
    for body in (b'{"inputs": []}', b'{"id": "shared_memory_region"}', b""):
        assert gathered(body, None, wire.NO_LIMITS, memory, "ann") is None
