"""Sessions' streams: nothing is read before it is there or changed before it was read, however late a stream is."""

from __future__ import annotations

import ctypes
import gc
from functools import partial
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox_ops.backend import backend_for, staging
from opbox_ops.cuda import cublas
from opbox_protocol.errors import QuotaError
from opbox_service.engine import Engine
from opbox_service.executor import invoke
from opbox_service.settings import Settings

from .test_capture import trained

LARGE = 5 * staging.COPY_BYTES // 8 + 3
"""Elements of an array that takes more than half of the ring for uploads, and ends within a chunk."""
SMALL = 100


def numbers(size: int, begin: int = 0) -> Any:
    return np.arange(begin, begin + size, dtype="f")


@pytest.mark.parametrize("size", [0, 1, SMALL, LARGE])
def test_arrays_come_back_as_they_were_sent(gpu: Any, size: int) -> None:
    backend: Any = backend_for("gpu:0").for_session()
    with gpu.deferred(), backend.scope():
        arrays = []
        for k in range(3):
            host = numbers(size, k)
            arrays.append(backend.put(host))
            host[...] = -1  # the request's memory may go once put has returned
        for k, array in enumerate(arrays):
            array += 1
            np.testing.assert_array_equal(backend.get(array), numbers(size, k) + 1)
    backend.close()


def test_arrays_that_operators_send_are_not_read_later(gpu: Any, cupy: Any) -> None:
    """CuPy's own copies: of tables that operators make on the host and let go of."""
    backend: Any = backend_for("gpu:0").for_session()
    with gpu.deferred(), backend.scope():
        table = numbers(SMALL)
        sent = cupy.asarray(table)
        table[...] = -1
        np.testing.assert_array_equal(backend.get(sent), numbers(SMALL))
    backend.close()


def test_a_write_without_a_session_ends_before_the_call(gpu: Any) -> None:
    backend = backend_for("gpu:0")
    target = backend.put(numbers(SMALL))
    with gpu.recorded() as calls:
        backend.write(target, numbers(SMALL, 7))
    kinds = [kind for kind, _ in calls.events if kind in ("transfer", "synchronize")]
    assert kinds == ["transfer", "synchronize"], "the host's array is not page-locked"
    np.testing.assert_array_equal(backend.get(target), numbers(SMALL, 7))


def test_every_shape_and_type_is_sent(gpu: Any) -> None:
    from ml_dtypes import bfloat16

    backend: Any = backend_for("gpu:1").for_session()
    with gpu.deferred(), backend.scope():
        for dtype in ("float16", "float64", "int8", "bool", bfloat16):
            for shape in ((), (3,), (2, 3)):
                host = np.ones(shape, dtype)
                array = backend.put(host)
                back = backend.get(array)
                assert (back.dtype, back.shape) == (host.dtype, shape)
                np.testing.assert_array_equal(back, host)
        target = backend.put(np.zeros((2, 3), "f"))
        backend.write(target.T, np.arange(6, dtype="int32").reshape(3, 2))  # neither the order nor the type
        np.testing.assert_array_equal(backend.get(target.T), np.arange(6).reshape(3, 2))
        np.testing.assert_array_equal(backend.get(target), np.arange(6).reshape(3, 2).T)
    backend.close()


@pytest.mark.parametrize("early", ["nobody", "uploads", "computing"])
def test_an_array_is_written_to_behind_what_reads_it(gpu: Any, early: str) -> None:
    """A batch goes to arrays that are fed, while the step before may still compute with them."""
    backend: Any = backend_for("gpu:0").for_session()
    with gpu.deferred() as streams, backend.scope():
        feed = backend.put(numbers(LARGE))
        if early != "nobody":
            streams.hasty.add(backend.stream.ptr if early == "computing" else backend._staging._apart[1].ptr)
        sums = []
        for step in range(4):
            backend.write(feed, numbers(LARGE, step))
            sums.append(feed[:: LARGE - 1] * 1)
        got = [backend.get(total) for total in sums]
    np.testing.assert_array_equal(got, [[step, step + LARGE - 1] for step in range(4)])
    backend.close()


def test_an_upload_waits_for_nothing_that_computes(gpu: Any) -> None:
    """Its bytes are on the device before the session's stream has done anything."""
    backend: Any = backend_for("gpu:0").for_session()
    size = staging.COPY_BYTES // 8
    with gpu.deferred() as streams, backend.scope():
        feed = backend.put(numbers(size))
        backend.get(feed)
        memory, stream = backend._staging._apart
        ring = backend._staging._uploads
        begin = ring._next
        with gpu.recorded() as calls:
            feed *= 2
            backend.write(feed, numbers(size, 7))
        assert not calls["synchronize"], "the host waits for nobody"
        kinds = [kind for kind, _ in calls.events if kind in ("launch", "transfer", "copy")]
        assert kinds == ["launch", "transfer", "copy"]
        streams.finish(stream.ptr)
        staged = np.empty(size, "f")
        ctypes.memmove(staged.ctypes.data, memory.ptr + begin, staged.nbytes)
        np.testing.assert_array_equal(staged, numbers(size, 7))
        assert not streams.come(ring._used[-1][2].ptr), "the session's stream has not copied it"
    backend.close()


def test_uploads_begin_behind_who_had_their_memory_before(gpu: Any) -> None:
    backend: Any = backend_for("gpu:0").for_session()
    with gpu.deferred() as streams, backend.scope():
        streams.hasty.update(range(gpu.next_id(), gpu.next_id() + 100))  # the stream of uploads is not made yet
        target = backend.empty((LARGE,), "f")
        array = backend.empty((staging.UPLOAD_RING,), "int8")
        place = array.data.ptr
        array.fill(1)
        del array
        backend.write(target, numbers(LARGE))
        assert backend._staging._apart[0].ptr == place
        np.testing.assert_array_equal(backend.get(target), numbers(LARGE))
    backend.close()


def test_another_stream_does_not_wait(gpu: Any) -> None:
    """And so it would read what is not there yet: what these tests rely on."""
    first, second = (backend_for("gpu:0").for_session() for _ in range(2))
    with gpu.deferred():
        with first.scope():
            array = first.put(numbers(SMALL))
            array += 1
        with second.scope():
            assert not np.array_equal(second.get(array), numbers(SMALL) + 1)
        np.testing.assert_array_equal(first.get(array), numbers(SMALL) + 1)
    first.close()
    second.close()


def test_memory_is_used_again_by_its_own_stream_alone(gpu: Any) -> None:
    first, second = (backend_for("gpu:0").for_session() for _ in range(2))
    places = []
    for backend in (first, second, first):
        with backend.scope():
            places.append(backend.empty((LARGE,), "f").data.ptr)
    assert places[0] == places[2] != places[1]
    first.close()
    second.close()


def test_products_of_streams_have_workspaces_of_their_own(gpu: Any) -> None:
    backends: list[Any] = [backend_for("gpu:0"), *(backend_for("gpu:0").for_session() for _ in range(2))]
    results = []
    with gpu.deferred():
        for k, backend in enumerate(backends):
            with backend.scope():
                matrix = backend.put(np.full((3, 3), k + 1, "f"))
                options: Any = {"backend": backend, "random": backend.random(0)}
                results.append(invoke("dot", {}, [matrix, matrix], **options)[0])
        for k, (backend, result) in enumerate(zip(backends, results, strict=True)):
            np.testing.assert_array_equal(backend.get(result), np.full((3, 3), 3 * (k + 1) ** 2))
    handle = cublas._handles[0]
    places = [handle.workspace(backend.stream.ptr).ptr for backend in backends[1:]]
    assert len({handle._workspaces[0].ptr, *places}) == 3
    for backend in backends[1:]:
        backend.close()
        assert backend.stream.ptr not in handle._workspaces


def test_without_page_locked_memory_arrays_are_sent_all_the_same(gpu: Any) -> None:
    admit = Refused(host=1 << 30)
    backend: Any = backend_for("gpu:0").for_session(admit)
    with gpu.deferred(), backend.scope():
        for _ in range(2):
            gpu.fail_next("hostAlloc", gpu.OUT_OF_MEMORY)
            array = backend.put(numbers(LARGE))
            gpu.fail_next("hostAlloc", gpu.OUT_OF_MEMORY)
            np.testing.assert_array_equal(backend.get(array), numbers(LARGE))
    assert admit.available[False] == 1 << 30, "what could not be had is not counted"
    backend.close()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_has_the_same_numbers_on_a_late_stream(gpu: Any, optimizer: str) -> None:
    """A whole session: uploads, dropout, recorded graphs, updates, fetches."""
    at_once = trained(optimizer)
    with gpu.deferred():
        late = trained(optimizer)
    for key, expected in at_once.items():
        np.testing.assert_array_equal(late[key], expected, err_msg=key)


def test_two_sessions_in_turns_have_their_own_numbers(gpu: Any) -> None:
    engine = Engine(Settings())
    try:
        with gpu.deferred():
            sessions = [engine.sessions.create("ann", device="gpu:0") for _ in range(2)]
            answers: dict[int, Any] = {}
            for step in range(3):
                for k, session in enumerate(sessions):
                    tensor = np.full((64, 64), k + step + 1, "f")
                    x, product = 10 * step + 1, 10 * step + 2
                    commands: list[dict[str, Any]] = [
                        {"do": "put", "id": x, "tensor": "x"},
                        {"do": "invoke", "op": "dot", "attrs": {}, "inputs": [x, x], "outputs": [product]},
                        {"do": "fetch", "id": product, "as": "out"},
                    ]
                    session.submit(None, commands, {"x": tensor}, partial(answers.__setitem__, k))
                    session.drain()
                for k in range(2):
                    np.testing.assert_array_equal(
                        answers[k].tensors["out"], np.full((64, 64), 64 * (k + step + 1) ** 2)
                    )
    finally:
        engine.close()


def test_a_sessions_memory_goes_back_at_its_end(gpu: Any) -> None:
    engine = Engine(Settings())
    try:
        other = engine.sessions.create("bob", device="gpu:0")
        gc.collect()
        before = gpu.state.used[0]
        session = engine.sessions.create("ann", device="gpu:0")
        for seq, do in enumerate(({"do": "put", "id": 1, "tensor": "x"}, {"do": "copy", "from": 1, "to": 2}), 1):
            session.submit(seq, [do], {"x": numbers(LARGE)}, lambda answer: None)
            session.drain()
        assert gpu.state.used[0] - before >= 8 * LARGE
        with gpu.recorded() as calls:
            engine.sessions.delete("ann", session.id)
        gc.collect()
        assert gpu.state.used[0] <= before
        kinds = [kind for kind, _ in calls.events]
        assert "synchronize" in kinds[: kinds.index("free")], "its stream is waited for first"
        assert other.closed is None
    finally:
        engine.close()


class Refused:
    """Counts what a backend asks for, and refuses more than it may have."""

    def __init__(self, device: int = 1 << 40, host: int = 1 << 40) -> None:
        self.available = {True: device, False: host}

    def __call__(self, nbytes: int, on_device: bool) -> None:
        if nbytes > self.available[on_device]:
            raise QuotaError(f"{nbytes} bytes are too many")
        self.available[on_device] -= nbytes


def square(backend: Any) -> Any:
    """A product of a matrix of the session's."""
    matrix = backend.put(np.full((3, 3), 2, "f"))
    (result,) = invoke("dot", {}, [matrix, matrix], backend=backend, random=backend.random(0))
    return backend.get(result)


@pytest.mark.parametrize("host", [0, staging.SMALL_RING, staging.UPLOAD_RING, 1 << 30])
@pytest.mark.parametrize("device", [4 << 20, 1 << 30])
def test_what_a_quota_refuses_is_done_without(gpu: Any, device: int, host: int) -> None:
    """Copies go the slower way, and products have the smaller workspace."""
    admit = Refused(device, host)
    backend: Any = backend_for("gpu:0").for_session(admit)
    with gpu.deferred(), backend.scope():
        for size in (SMALL, LARGE, SMALL, LARGE):
            array = backend.put(request := numbers(size))
            request[...] = -1  # its memory may go once put has returned, whether or not it was page-locked
            array += 1
            np.testing.assert_array_equal(backend.get(array), numbers(size) + 1)
        np.testing.assert_array_equal(square(backend), np.full((3, 3), 12))
    pinned = sum(ring.size for ring in (backend._staging._uploads, backend._staging._downloads) if ring is not None)
    assert pinned == host - admit.available[False], "all of it has been counted"
    apart = 0 if backend._staging._apart is None else staging.UPLOAD_RING
    workspace = cublas._handles[0]._workspaces[backend.stream.ptr].mem.size
    assert apart + workspace == device - admit.available[True]
    assert (workspace, apart > 0) == ((4 << 20, False) if device == 4 << 20 else (32 << 20, host == 1 << 30))
    backend.close()


def test_a_product_is_refused_where_there_is_no_room_for_a_workspace(gpu: Any) -> None:
    backend: Any = backend_for("gpu:0").for_session(Refused(device=(4 << 20) - 1))
    with backend.scope(), pytest.raises(QuotaError, match="4194304 bytes are too many"):
        square(backend)
    backend.close()


def test_a_sessions_copies_and_products_are_in_its_quota(gpu: Any) -> None:
    engine = Engine(Settings(max_device_bytes=1 << 30))
    try:
        session = engine.sessions.create("ann", device="gpu:0")
        x = np.ones((512, 512), "f")
        product = {"do": "invoke", "op": "dot", "attrs": {}, "inputs": [1, 1], "outputs": [2]}
        session.submit(1, [{"do": "put", "id": 1, "tensor": "x"}, product], {"x": x}, lambda answer: None)
        session.drain()
        assert session.budget.used == 2 * x.nbytes + staging.UPLOAD_RING + (32 << 20)
        host = engine.ledger.of("ann", "cpu")
        assert host.used >= staging.UPLOAD_RING
        session.close("done")
        assert (session.budget.used, host.used) == (0, 0)
    finally:
        engine.close()


def test_a_session_whose_stream_fails_lets_go_of_what_it_had(gpu: Any) -> None:
    backend: Any = backend_for("gpu:0").for_session()
    with backend.scope():
        backend.put(numbers(LARGE))
        square(backend)
    number = backend.stream.ptr
    assert number in cublas._handles[0]._workspaces
    gpu.fail_next("streamSynchronize", 9)
    backend.close()
    assert number not in cublas._handles[0]._workspaces
    assert number not in cublas._apart
    staged = backend._staging
    assert (staged._uploads, staged._downloads, staged._apart) == (None, None, None)


def test_a_session_that_cannot_be_opened_leaves_no_stream(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stream may have its number next, and would have a workspace that nobody drops."""
    from opbox_ops.backend.cupy import SessionBackend

    def refuse(backend: Any, seed: int) -> Any:
        raise MemoryError("the device is full")

    engine = Engine(Settings())
    try:
        before = set(cublas._apart)
        with monkeypatch.context() as patch:
            patch.setattr(SessionBackend, "random", refuse)
            with pytest.raises(MemoryError, match="the device is full"):
                engine.sessions.create("ann", device="gpu:0")
        assert set(cublas._apart) == before
        session = engine.sessions.create("ann", device="gpu:0")
        assert len(cublas._apart) == len(before) + 1
        session.close("done")
        assert set(cublas._apart) == before
    finally:
        engine.close()


@pytest.mark.parametrize("wait", ["wait_to_read", "waitall"])
def test_who_waits_for_an_array_waits_for_the_device(gpu: Any, monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(None)
    with gpu.deferred() as streams:
        x = mx.nd.ones((SMALL,), mx.gpu(0))
        y = x * 2 * 3
        mx.gpu(0).session.flush()
        if wait == "waitall":
            mx.nd.waitall()
        else:
            y.wait_to_read()
        assert not streams.waiting
        np.testing.assert_array_equal(y.asnumpy(), np.full(SMALL, 6, "f"))
    connection.use(None)


def test_an_error_that_the_device_finds_late_meets_who_waits(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(None)
    y = mx.nd.ones((SMALL,), mx.gpu(0)) * 2
    gpu.fail_next("streamSynchronize", 9)
    with pytest.raises(mx.MXNetError, match="cudaErrorInvalidConfiguration"):
        y.wait_to_read()
    connection.use(None)
