"""Suggestions for a name that there is not."""

from __future__ import annotations

import pytest

import opbox as mx
from opbox_ops import registry
from opbox_protocol.near_names import near_names

KNOWN = ["Convolution", "Convolution_v1", "Deconvolution", "cond", "relu", "FullyConnected"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Conv", ["Convolution", "Convolution_v1", "cond"]),
        ("FullyConected", ["FullyConnected"]),
        ("RELU", ["relu"]),
        ("co", ["cond"]),  # two letters begin too many names
        ("", []),
        ("xyz", []),
    ],
)
def test_names_that_begin_alike_come_before_similar_ones(name: str, expected: list[str]) -> None:
    assert near_names(name, KNOWN) == expected


def test_no_more_than_asked_for() -> None:
    assert near_names("conv", KNOWN, most=1) == ["Convolution"]
    assert near_names("fullyconected", KNOWN, cutoff=0.99) == []


def test_a_name_cut_short_is_suggested_whole_everywhere() -> None:
    for place in (mx.sym, mx.nd):
        with pytest.raises(AttributeError, match="did you mean Convolution or "):
            _ = place.Conv
    with pytest.raises(mx.MXNetError, match="did you mean Convolution or "):
        registry.get("Conv")
    with pytest.raises(mx.MXNetError, match="did you mean Convolution or "):
        mx.sym.load_json(mx.sym.relu(mx.sym.Variable("x")).tojson().replace('"relu"', '"Conv"')).infer_shape(x=(2,))
