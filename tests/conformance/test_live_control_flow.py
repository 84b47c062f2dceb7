"""foreach, while_loop and cond beside MXNet's: files, outputs, gradients; and the values that are recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from tests.control_flow.networks import NETWORKS
from tests.control_flow.values import arrays_for, filled, plain_scopes, run, symbol

from .mxnet import Oracle

pytestmark = pytest.mark.conformance

RECORDED = Path(__file__).parent / "recorded" / "control_flow.npz"

RUN = [name for name, network in NETWORKS.items() if network.oracle in ("all", "forward")]


def _theirs(oracle: Oracle, name: str, text: str) -> dict[str, Any]:
    arguments, heads = arrays_for(name)
    request = {f"arg:{key}": value for key, value in arguments.items()}
    request |= {f"head:{k}": head for k, head in enumerate(heads)}
    wanted = list(arguments) if NETWORKS[name].oracle == "all" else []
    answer = oracle.ask("run", request, json=text, wanted=wanted, is_train=True)[1]
    return {key: filled(name, key, value) for key, value in answer.items() if key.startswith(("out:", "grad:"))}


@pytest.mark.parametrize("name", [name for name, network in NETWORKS.items() if network.oracle])
def test_the_file_is_mxnets(oracle: Oracle, name: str) -> None:
    theirs = oracle.ask("lists", network="networks", package="tests.control_flow", options={"name": name})[0]
    ours = symbol(name)
    assert plain_scopes(ours.tojson()) == plain_scopes(theirs["json"])
    assert ours.list_arguments() == theirs["arg_names"]
    assert ours.list_outputs() == theirs["out_names"]
    assert plain_scopes(mx.sym.load_json(theirs["json"]).tojson()) == plain_scopes(theirs["json"])


@pytest.mark.parametrize("name", RUN)
def test_outputs_and_gradients(oracle: Oracle, name: str) -> None:
    net = symbol(name)
    theirs = _theirs(oracle, name, net.tojson())
    ours = run(net, *arrays_for(name))
    assert set(theirs) == (set(ours) if NETWORKS[name].oracle == "all" else {k for k in ours if k.startswith("out:")})
    for key, value in theirs.items():
        np.testing.assert_allclose(filled(name, key, ours[key]), value, rtol=2e-5, atol=2e-6, err_msg=key)


def test_recorded_values_are_mxnets(oracle: Oracle) -> None:
    """With OPBOX_RECORD set, they are written."""
    fresh = {f"{name}|{k}": v for name in RUN for k, v in _theirs(oracle, name, symbol(name).tojson()).items()}
    if os.environ.get("OPBOX_RECORD"):
        np.savez_compressed(RECORDED, **fresh)
    with np.load(RECORDED) as recorded:
        assert set(recorded.files) == set(fresh)
        for key in recorded.files:
            np.testing.assert_allclose(recorded[key], fresh[key], rtol=1e-6, atol=1e-7, err_msg=key)
