"""Summaries and drawings of a symbol."""

from __future__ import annotations

import importlib.util

import pytest

import opbox as mx
from opbox_protocol.errors import MXNetError


def network() -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def test_a_summary_counts_shapes_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    mx.viz.print_summary(network(), shape={"data": (2, 5)})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["fc1(FullyConnected)", "8", "48", "data"] in rows
    assert ["fc2(FullyConnected)", "3", "27", "fc1"] in rows
    assert ["Total", "params:", "75"] in rows


@pytest.mark.skipif(importlib.util.find_spec("graphviz") is not None, reason="graphviz is installed")
def test_a_drawing_says_what_it_needs() -> None:
    with pytest.raises(MXNetError, match="plot_network: needs the Python package graphviz"):
        mx.viz.plot_network(network(), shape={"data": (2, 5)})
