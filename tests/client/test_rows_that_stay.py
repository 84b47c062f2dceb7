"""Iterators over arrays on a server: a row travels once, a step names rows, and the bits are those of batches sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox.module.feed import load_batch
from opbox_protocol import routes, wire
from opbox_protocol.errors import MXNetError, NotFoundError
from opbox_protocol.transport import Reply
from tests.contract.live import TOKENS, Live
from tests.contract.test_access import wait_for

ROWS, WIDTH, BATCH = 103, 700, 10
RNG = np.random.RandomState(3)
PIXELS = RNG.randint(0, 256, (ROWS, WIDTH)).astype(np.uint8)
FLOATS = RNG.rand(ROWS, WIDTH).astype(np.float32)
LABELS = RNG.randint(0, 10, ROWS).astype(np.float32)


class Counting:
    """A transport to a server that remembers what each request is: commands, and bytes of the body."""

    in_process = False

    def __init__(self, url: str, owner: str) -> None:
        self._http = HttpTransport(url, TOKENS[owner])
        self.address, self.connections = self._http.address, self._http.connections
        self.steps: list[tuple[list[str], int]] = []
        self.asked = 0

    def call(
        self, method: str, path: str, header: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None
    ) -> Reply:
        head, buffers = wire.encode(dict(header or {}), dict(tensors or {}), "inputs")
        self.asked += path == routes.BLOCKS
        if path.endswith("/commands") and header is not None:
            self.steps.append(([c["do"] for c in header["commands"]], wire.frame_size(head, buffers)))
        return self._http.call(method, path, header, tensors)

    def another(self) -> Any:
        return self._http.another()

    def near(self, path: str) -> Any:
        return self._http.near(path)

    def close(self) -> None:
        self._http.close()

    def take(self) -> list[tuple[list[str], int]]:
        """The batches since the last call."""
        steps, self.steps = self.steps, []
        return steps

    @property
    def sent(self) -> int:
        """Batches that brought rows."""
        return sum("put_rows" in commands or "write" in commands for commands, _ in self.steps)


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Counting]]:
    """Use a server by an owner's token, as a program that has just begun."""
    monkeypatch.delenv("OPBOX_URL", raising=False)

    def use(server: Live, owner: str) -> Counting:
        transport = Counting(server.url, owner)
        connection.use(transport)
        return transport

    yield use
    connection.use(None)


def check_epochs(batches: Any, epochs: int) -> None:
    """Feed epochs to bound arrays: each has the bits of its batch's values."""
    descs = [*batches.provide_data, *batches.provide_label]
    bound = {desc.name: mx.nd.zeros(desc.shape, dtype=desc.dtype) for desc in descs}
    count = 0
    for _ in range(epochs):
        for batch in batches:
            arrays = [*batch.data, *batch.label]
            load_batch(bound, descs, arrays)
            for desc, array in zip(descs, arrays, strict=True):
                values, expected = bound[desc.name].asnumpy(), array.asnumpy()
                assert values.dtype == expected.dtype
                assert values.tobytes() == expected.tobytes()
            count += 1
        batches.reset()
    assert count >= epochs * (ROWS // BATCH)


SETS = {
    "uint8": lambda: (PIXELS.repeat(4, axis=1), LABELS),
    "float32": lambda: (FLOATS, LABELS),
    "float64": lambda: (FLOATS.astype(np.float64), LABELS.astype(np.int64)),
    "several": lambda: ({"left": FLOATS, "right": PIXELS}, {"a_label": LABELS, "b_label": PIXELS[:, :2]}),
    "no label": lambda: (FLOATS.astype(np.float16).reshape(ROWS, 7, -1).repeat(2, axis=1), None),
    "NDArray": lambda: (mx.nd.array(FLOATS * 100, dtype="int32"), mx.nd.array(LABELS)),
}


@pytest.mark.parametrize("last", ["pad", "discard", "roll_over"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("arrays", SETS)
def test_every_mode_has_the_bits_of_its_batches(
    live: Live, reach: Callable[..., Counting], arrays: str, shuffle: bool, last: str
) -> None:
    transport = reach(live, "ann")
    np.random.seed(1)
    data, label = SETS[arrays]()
    batches = mx.io.NDArrayIter(data, label, BATCH, shuffle=shuffle, last_batch_handle=last)
    check_epochs(batches, 2)
    assert not any("write" in commands for commands, _ in transport.take())
    check_epochs(batches, 2)
    if last != "discard":  # which leaves rows out, others in each epoch
        assert not transport.sent
    batches.hard_reset()
    check_epochs(batches, 1)


def network(layers: int) -> Any:
    net = mx.sym.Variable("data")
    for layer in range(layers):
        net = mx.sym.FullyConnected(net, num_hidden=10, name=f"fc{layer}")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def trained(
    batches: Any, epochs: int, mark: Callable[[], object] = lambda: None, layers: int = 1, context: Any = None
) -> list[Any]:
    """Weights and accuracy of a training on these batches; `mark` is called before each epoch."""
    mx.random.seed(5)
    mod = mx.mod.Module(network(layers), context=context or mx.cpu())
    mod.bind(batches.provide_data, batches.provide_label)
    mod.init_params(mx.init.One())
    mod.init_optimizer(optimizer_params={"learning_rate": 1e-3, "momentum": 0.9, "wd": 1e-4})
    metric = mx.metric.create("acc")
    for _ in range(epochs):
        mark()
        for batch in batches:
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)
        metric.get()
        batches.reset()
    return [metric.get()[1], *(array.asnumpy().tobytes() for array in mod.get_params()[0].values())]


def test_later_epochs_and_a_second_program_send_numbers_of_rows(
    live: Live, reach: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> Any:
        np.random.seed(2)
        return mx.io.NDArrayIter(PIXELS.repeat(4, axis=1) + 1, LABELS, BATCH, shuffle=True)

    monkeypatch.setenv("OPBOX_DATASETS", "0")
    transport = reach(live, "py")
    expected = trained(batches(), 3)
    assert transport.sent == 33
    assert not any("dataset" in commands for commands, _ in transport.take())
    monkeypatch.delenv("OPBOX_DATASETS")
    transport = reach(live, "py")
    epochs: list[Any] = []
    assert trained(batches(), 3, lambda: epochs.append(transport.take())) == expected
    epochs = [*epochs[1:], transport.take()]
    # The first epoch brings each row once, as a byte for each pixel and not four; beside the first weights.
    assert sum(size for _, size in epochs[0]) < 2 * PIXELS.nbytes * 4
    for epoch in epochs[1:]:
        steps = [(commands, size) for commands, size in epoch if "forward" in commands]
        assert len(steps) >= 11
        for commands, size in steps:
            assert "put_rows" not in commands
            assert size < 2000, commands
    wait_for(lambda: live.call("GET", "/v1/datasets", owner="py").header["used_bytes"] >= PIXELS.nbytes * 4)
    # A second program, and a notebook that ran again: nothing travels that the store has.
    transport = reach(live, "py")
    assert trained(batches(), 3) == expected
    assert not transport.sent
    assert max(size for commands, size in transport.take() if "forward" in commands and "bind" not in commands) < 2000


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_new_iterator_over_the_same_values_sends_nothing(
    isolation: str, start_server: Callable[..., Live], reach: Callable[..., Counting]
) -> None:
    """A program that makes an iterator for each epoch, over an array that it may change in between."""
    transport = reach(start_server(isolation), "ann")
    pixels, mod, ends = PIXELS.repeat(4, axis=1) + 3, mx.mod.Module(network(1)), []
    for epoch in range(5):
        if epoch == 3:
            pixels[0, 0] += 1
        batches = mx.io.NDArrayIter(pixels.copy() if epoch % 2 else pixels, LABELS, BATCH)
        if epoch == 0:
            mod.bind(batches.provide_data, batches.provide_label)
            mod.init_params()
        transport.take()
        for batch in batches:
            mod.forward(batch, is_train=False)
            ends.append(mod.get_outputs()[0].asnumpy().tobytes())
        assert bool(transport.sent) == (epoch in (0, 3)), epoch  # what has changed travels
        # No value that somebody reads waits until rows are saved.
        assert not any({"keep_rows", "fetch"} <= set(commands) for commands, _ in transport.steps)
    assert not transport.asked
    assert ends[:11] == ends[11:22] == ends[22:33] != ends[33:44] == ends[44:]


def test_of_a_large_array_the_store_is_asked_for_the_first_block(
    start_server: Callable[..., Live], reach: Callable[..., Counting]
) -> None:
    server, pixels = start_server(), PIXELS[:100].repeat(250, axis=1)
    for program in range(2):
        transport = reach(server, "ann")
        for epoch in range(2):
            batches = mx.io.NDArrayIter(pixels, None, BATCH)
            bound = {"data": mx.nd.zeros((BATCH, pixels.shape[1]))}
            transport.take()
            for batch in batches:
                load_batch(bound, batches.provide_data, batch.data)
            assert bound["data"][:, -1].asnumpy().tolist() == pixels[90:100, -1].tolist()
            assert bool(transport.sent) == (program == epoch == 0)
        assert transport.asked == 1  # what the store has, or was sent, it is not asked for again


def test_slices_of_a_batch_for_several_devices(live: Live, reach: Callable[..., Counting]) -> None:
    def parallel() -> list[Any]:
        np.random.seed(2)
        batches = mx.io.NDArrayIter(FLOATS + 7, LABELS, BATCH, shuffle=True)
        return trained(batches, 2, context=[mx.cpu(0), mx.cpu(1)])

    connection.use(None)
    expected = parallel()
    transport = reach(live, "ann")
    assert parallel() == expected
    commands, size = [step for step in transport.take() if "forward" in step[0]][-1]
    assert commands.count("take_rows") == 4
    assert "put_rows" not in commands
    assert size < 2000


def test_a_step_of_many_weights_states_their_parameters_once(live: Live, reach: Callable[..., Counting]) -> None:
    def deep() -> list[Any]:
        np.random.seed(2)
        return trained(mx.io.NDArrayIter(FLOATS + 6, LABELS, BATCH, shuffle=True), 2, layers=20)

    connection.use(None)
    expected = deep()
    transport = reach(live, "ann")
    assert deep() == expected
    commands, size = [step for step in transport.take() if "forward" in step[0]][-1]
    assert "update" in commands
    assert size < 2000  # 20 weights, and 20 biases without weight decay


def test_other_arrays_by_an_operator_come_from_the_dataset_too(live: Live, reach: Callable[..., Counting]) -> None:
    transport = reach(live, "ann")
    batches = mx.io.NDArrayIter(FLOATS + 1, LABELS, BATCH)
    for _ in range(2):
        transport.take()
        sums = [(batch.data[0] * 2).sum(axis=1).asnumpy() for batch in batches]
        batches.reset()
    assert np.allclose(np.concatenate(sums)[:ROWS], 2 * (FLOATS + 1).sum(axis=1), rtol=1e-5)  # sums in another order
    assert not any("put" in commands or "put_rows" in commands for commands, _ in transport.take())


def test_rows_of_a_batch_that_failed_come_again(live: Live, reach: Callable[..., Counting]) -> None:
    transport = reach(live, "ann")
    batches = mx.io.NDArrayIter(FLOATS + 2, LABELS, BATCH)
    target = {"data": mx.nd.zeros((BATCH, WIDTH))}
    descs = batches.provide_data
    for number, batch in enumerate(batches):
        session = target["data"]._session
        if number == 3:  # a batch whose first command fails: the rows behind it do not arrive
            session.record({"do": "free", "ids": [10**9]})
            session.record({"do": "copy", "from": 10**9, "to": target["data"]._id})
            load_batch(target, descs, batch.data)
            with pytest.raises(NotFoundError):
                target["data"].asnumpy()
        load_batch(target, descs, batch.data)
        assert target["data"].asnumpy().tobytes() == batch.data[0].asnumpy().tobytes()
    batches.reset()
    transport.take()
    check_epochs(batches, 1)


def test_rows_of_a_cancelled_batch_come_again(live: Live, reach: Callable[..., Counting]) -> None:
    reach(live, "ann")
    batches = mx.io.NDArrayIter(FLOATS + 8, LABELS, BATCH)
    target = {"data": mx.nd.zeros((BATCH, WIDTH))}
    session = target["data"]._session
    for _ in range(2):
        for number, batch in enumerate(batches):
            if number % 4 == 3:  # these rows have been recorded, and are dropped
                load_batch(target, batches.provide_data, batch.data)
                session.cancel()
            load_batch(target, batches.provide_data, batch.data)
            assert target["data"].asnumpy().tobytes() == batch.data[0].asnumpy().tobytes()
        batches.reset()


def test_a_later_change_of_the_array_changes_no_batch(live: Live, reach: Callable[..., Counting]) -> None:
    reach(live, "ann")
    values = FLOATS + 3
    batches = mx.io.NDArrayIter(values, LABELS, BATCH)
    check_epochs(batches, 1)
    values[:] = 0  # as with MXNet, the iterator has a copy by now
    assert batches.next().data[0].asnumpy().tobytes() == (FLOATS + 3)[:BATCH].tobytes()
    batches.reset()
    check_epochs(batches, 1)


def test_data_without_space_travels_with_each_step(start_server: Callable[..., Live], reach: Any) -> None:
    server = start_server(OPBOX_MAX_SESSION_BYTES=str(1 << 19))
    transport = reach(server, "ann")
    check_epochs(mx.io.NDArrayIter(FLOATS, LABELS, BATCH), 2)
    assert transport.sent == 22


def test_files_of_rows_and_sentences(live: Live, reach: Callable[..., Counting], tmp_path: Any) -> None:
    transport = reach(live, "ann")
    np.savetxt(tmp_path / "rows.csv", (FLOATS + 4)[:, :660], delimiter=",", fmt="%.4f")
    for round_batch in (True, False):
        rows = mx.io.CSVIter(tmp_path / "rows.csv", (660,), batch_size=BATCH, round_batch=round_batch)
        check_epochs(rows, 3)
    assert not any("write" in commands for commands, _ in transport.take())
    sentences = RNG.randint(0, 50, (900, 80)).tolist() + RNG.randint(0, 50, (900, 20)).tolist()
    np.random.seed(6)
    words = mx.rnn.BucketSentenceIter(sentences, BATCH, buckets=[20, 80])
    bound = {length: mx.nd.zeros((BATCH, length)) for length in (20, 80)}
    for _ in range(3):
        transport.take()
        for batch in words:
            for desc, array in ((batch.provide_data[0], batch.data[0]), (batch.provide_label[0], batch.label[0])):
                load_batch({desc.name: bound[batch.bucket_key]}, [desc], [array])
                assert bound[batch.bucket_key].asnumpy().tobytes() == array.asnumpy().tobytes()
        words.reset()
    assert not transport.sent


@pytest.fixture
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Live]]:
    servers: list[Live] = []

    def begin(isolation: str = "none", **settings: str) -> Live:
        servers.append(Live(isolation, tmp_path_factory.mktemp("small"), **settings))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def test_named_datasets(engine: str) -> None:
    pixels = PIXELS[:, :9] + 2
    stored = mx.datasets.put("toy", {"data": pixels, "softmax_label": LABELS}, published=True)
    assert (stored.name, stored.published, stored.nbytes) == ("toy", True, pixels.nbytes + LABELS.nbytes)
    assert [dataset.name for dataset in mx.datasets.list() if dataset.name == "toy"] == ["toy"]
    toy = mx.datasets.get("toy")
    assert (list(toy), toy["data"].shape, toy["data"].stored_dtype) == (
        ["data", "softmax_label"],
        pixels.shape,
        np.uint8,
    )
    assert toy["data"].asnumpy().tobytes() == pixels.tobytes()
    np.random.seed(4)
    batches = mx.io.NDArrayIter(mx.datasets.get("toy"), batch_size=BATCH, shuffle=True)
    assert [desc.name for desc in batches.provide_label] == ["softmax_label"]
    np.random.seed(4)
    same = mx.io.NDArrayIter(pixels, LABELS, BATCH, shuffle=True)
    for batch, other in zip(batches, same, strict=True):
        assert (batch.data[0] + 1).asnumpy().tobytes() == (other.data[0] + 1).asnumpy().tobytes()
        assert batch.label[0].asnumpy().tobytes() == other.label[0].asnumpy().tobytes()
    mx.datasets.delete("toy")
    with pytest.raises(NotFoundError, match=r"dataset 'toy': expected one of yours, or a published one as owner/name"):
        mx.datasets.get("toy")
    with pytest.raises(NotFoundError, match="dataset 'toy': expected one of yours"):
        mx.datasets.delete("toy")


def test_a_published_dataset_is_read_by_others(live: Live, reach: Callable[..., Counting]) -> None:
    reach(live, "ann")
    mx.datasets.put("team", {"data": PIXELS + 5, "softmax_label": LABELS}, published=True)
    transport = reach(live, "py")
    with pytest.raises(NotFoundError, match="did you mean ann/team"):
        mx.datasets.get("team")
    check_epochs(mx.io.NDArrayIter(mx.datasets.get("ann/team"), batch_size=BATCH, shuffle=True), 2)
    assert not transport.sent
    reach(live, "ann")
    mx.datasets.delete("team")


@pytest.mark.parametrize(
    ("arrays", "error", "sentence"),
    [
        ({}, TypeError, r"arrays: expected an array, or a dict of arrays by name, got \{\}"),
        ([FLOATS], TypeError, r"arrays: expected an array, or a dict of arrays by name, got \[array"),
        ({"data": "x"}, TypeError, "arrays: data: expected an array, got 'x'"),
        ({1: FLOATS}, TypeError, "arrays: expected names of arrays, got 1"),
        ({"data": np.array(["x"])}, TypeError, "arrays: data: expected numbers, got "),
        ({"data": FLOATS[:0]}, ValueError, r"arrays: data: expected rows of numbers, got shape \(0, 700\) of float32"),
        ({"a": FLOATS, "b": LABELS[1:]}, ValueError, "arrays: b: expected 103 rows as in a, got 102"),
    ],
)
def test_arrays_that_are_none(embedded: None, arrays: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        mx.datasets.put("x", arrays)


def test_a_name_that_no_dataset_can_have(engine: str) -> None:
    with pytest.raises(
        MXNetError, match="dataset '-x': expected up to 64 letters, digits, dots, dashes and underlines"
    ):
        mx.datasets.put("-x", FLOATS)
