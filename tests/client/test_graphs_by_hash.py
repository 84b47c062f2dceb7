"""A graph's text travels once, its hash afterwards; and again when the engine has forgotten it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.device_sessions import sessions
from opbox_protocol.errors import NotFoundError
from opbox_protocol.symbol_json import content_hash
from opbox_protocol.transport import Reply, Transport
from opbox_service.embedded import engine as embedded_engine

DEEP = 200


class Watched:
    """Another transport's calls, with the graphs in them: "text" or "hash"."""

    def __init__(self, transport: Transport) -> None:
        self.address, self.in_process = transport.address, transport.in_process
        self.connections = transport.connections
        self.graphs: list[tuple[str, str]] = []
        self.bytes = 0
        self.forget = False
        self._transport = transport

    def another(self) -> Transport:
        return self._transport.another()

    def near(self, path: str) -> Any:
        return self._transport.near(path)

    def call(
        self, method: str, path: str, header: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None
    ) -> Reply:
        for part in [header or {}, *(header or {}).get("commands", ())]:
            graph = part.get("graph")
            if graph is not None:
                self.bytes += len(json.dumps(graph))
                self.graphs.append((part.get("do", path), "hash" if isinstance(graph, str) else "text"))
                if self.forget and isinstance(graph, str):
                    self.forget = False
                    return self._as_if_forgotten(method, path, header, graph.removeprefix("sha256:"))
        return self._transport.call(method, path, header, tensors)

    def _as_if_forgotten(self, method: str, path: str, header: Any, key: str) -> Reply:
        """Ask for a graph that was never there, and have the engine's answer speak of this one."""
        never = "0" * 64
        try:
            return self._transport.call(method, path, json.loads(json.dumps(header).replace(key, never)))
        except NotFoundError as error:
            error.detail["graph"] = key if error.detail["graph"] == never else None
            raise

    def close(self) -> None:
        self._transport.close()


@pytest.fixture
def watched(engine: str) -> Watched:
    transport = connection.transport()
    watched = Watched(transport)
    connection._current = watched
    return watched


def chain() -> mx.Symbol:
    net = mx.sym.Variable("x")
    for i in range(DEEP):
        net = mx.sym.tanh(net, name=f"tanh{i}")
    return net


def test_a_bind_sends_a_graph_once(watched: Watched) -> None:
    net = chain()
    size = len(json.dumps(net._document()))
    executor = net.simple_bind(mx.cpu(), x=(2, 3))
    executor.forward(x=mx.nd.ones((2, 3)))[0].asnumpy()
    assert watched.graphs == [("infer_shape", "text"), ("infer_type", "hash"), ("bind", "hash")]
    assert watched.bytes < size + 200
    again = net.simple_bind(mx.cpu(), x=(4, 3))
    assert again.forward()[0].shape == (4, 3)
    assert [sent for _, sent in watched.graphs[3:]] == ["hash"] * 3


def test_a_module_sends_a_graph_once(watched: Watched) -> None:
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3), name="softmax")
    module = mx.mod.Module(net)
    module.bind(data_shapes=[("data", (2, 4))], label_shapes=[("softmax_label", (2,))])
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.ones((2, 4))], [mx.nd.zeros((2,))]), is_train=False)
    assert module.get_outputs()[0].asnumpy().shape == (2, 3)
    assert [sent for _, sent in watched.graphs].count("text") == 1


def test_questions_without_a_session_name_the_graph_too(watched: Watched) -> None:
    net = chain()
    assert net.infer_shape(x=(2, 3))[1] == [(2, 3)]
    assert net.infer_type(x=np.float64)[1] == [np.float64]
    assert watched.graphs == [("/v1/infer_shape", "text"), ("/v1/infer_type", "hash")]
    assert not sessions()


@pytest.mark.parametrize("bound", [False, True])
def test_a_graph_that_the_engine_has_forgotten_is_sent_again(watched: Watched, bound: bool) -> None:
    net = chain()

    def ask(size: int) -> Any:
        if bound:
            return net.simple_bind(mx.cpu(), x=(size, 3)).forward()[0].shape
        return net.infer_shape(x=(size, 3))[1][0]

    assert ask(2) == (2, 3)
    before = len(watched.graphs)
    watched.forget = True
    assert ask(3) == (3, 3)
    assert [sent for _, sent in watched.graphs[before:]][:2] == ["hash", "text"]
    assert ask(4) == (4, 3)


def test_a_changed_graph_is_another(watched: Watched) -> None:
    x = mx.sym.Variable("x")
    net = mx.sym.FullyConnected(x, num_hidden=3, name="fc")
    assert net.infer_shape(x=(2, 4))[1] == [(2, 3)]
    net._set_attr(num_hidden="5")
    assert net.infer_shape(x=(2, 4))[1] == [(2, 5)]
    assert [sent for _, sent in watched.graphs] == ["text", "text"]


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_a_session_keeps_what_it_was_sent_though_others_send_more(watched: Watched) -> None:
    net = chain()
    net.simple_bind(mx.cpu(), x=(2, 3))
    graphs = embedded_engine().graphs
    graphs._owners.clear()  # as another owner's many graphs would
    with pytest.raises(NotFoundError, match="is not here"):
        graphs.resolve(f"sha256:{content_hash(net._document())}", "local")
    assert net.simple_bind(mx.cpu(), x=(5, 3)).forward()[0].shape == (5, 3)
    assert [sent for _, sent in watched.graphs].count("text") == 1


def test_a_bind_after_a_question_names_the_graph(watched: Watched) -> None:
    net = chain()
    assert net.infer_shape(x=(2, 3))[1] == [(2, 3)]
    net.bind(mx.cpu(), [mx.nd.ones((2, 3))]).forward()[0].asnumpy()
    assert [sent for _, sent in watched.graphs if sent == "text"] == ["text"]


def test_two_binds_that_travel_together_send_the_graph_once(watched: Watched) -> None:
    net = chain()
    first, second = (net.bind(mx.cpu(), [mx.nd.ones((n, 3))]) for n in (2, 5))
    assert (first.forward()[0].shape, second.forward()[0].shape) == ((2, 3), (5, 3))
    assert watched.graphs == [("bind", "text"), ("bind", "hash")]


def forget() -> None:
    """Have the embedded engine forget all graphs, as one that has had many others, or has been started anew."""
    embedded_engine().graphs._owners.clear()
    for session in embedded_engine().sessions._sessions.values():
        session.table._recent_graphs.clear()


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_a_recorded_bind_of_a_forgotten_graph_is_sent_again(watched: Watched) -> None:
    nets, x = [chain(), mx.sym.negative(chain())], mx.nd.ones((2, 3))
    for net in nets:
        net.bind(mx.cpu(), [x]).forward()[0].asnumpy()
    forget()
    before, written = len(watched.graphs), mx.nd.zeros((2, 3))
    written += 1
    executors = [net.bind(mx.cpu(), [x]) for net in (*nets, nets[0])]
    outputs = [executor.forward()[0].asnumpy() for executor in executors]
    assert np.array_equal(outputs[0], -outputs[1])
    assert np.array_equal(outputs[0], outputs[2])
    assert written.asnumpy().tolist() == np.ones((2, 3)).tolist()  # what stands before it has run once
    assert [sent for _, sent in watched.graphs[before:]][-3:] == ["text", "text", "hash"]


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_a_batch_that_nobody_waits_for_is_sent_again_too(watched: Watched) -> None:
    net, x = chain(), mx.nd.ones((2, 3))
    expected = net.bind(mx.cpu(), [x]).forward()[0].asnumpy()
    forget()
    executor = net.bind(mx.cpu(), [x])
    executor.forward()
    mx.cpu().session.flush()
    assert np.array_equal(executor.outputs[0].asnumpy(), expected)


def test_a_graph_that_is_refused_is_refused_each_time(watched: Watched) -> None:
    net = mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=3, name="fc")
    for _ in range(2):
        with pytest.raises(mx.MXNetError, match="fc"):
            net.bind(mx.cpu(), [mx.nd.ones((2, 4)), mx.nd.ones((3, 5)), mx.nd.ones((3,))]).forward()[0].asnumpy()
