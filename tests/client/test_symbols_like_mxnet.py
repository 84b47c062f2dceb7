"""Symbols are MXNet's to the byte: names, lists, attributes and files, as MXNet 1.9.1 recorded them."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import opbox as mx
from tests.client.builders import BUILDERS, build, graph_of

RECORDED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded").joinpath("symbols.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", BUILDERS)
def test_built_alike(name: str) -> None:
    ours, theirs = build(mx, name), RECORDED[name]
    for key in theirs:
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize("name", BUILDERS)
def test_files_of_mxnet_come_back_as_they_were(name: str) -> None:
    loaded = graph_of(mx.sym.load_json(RECORDED[name]["json"]))
    for key, value in RECORDED[name].items():
        assert loaded[key] == value, key


@pytest.mark.parametrize("name", BUILDERS)
def test_copies_and_pickles_are_equal(name: str) -> None:
    net = mx.sym.load_json(RECORDED[name]["json"])
    for other in (copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.tojson() == net.tojson()
