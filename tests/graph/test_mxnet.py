"""Graphs live against MXNet 1.9.1: JSON both ways, lists, shapes, types, outputs, gradients, auxiliary states."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.graph.json import dump, load
from opbox_service.graph.passes.infer_shape import infer_shape
from opbox_service.graph.passes.infer_type import infer_type

pytestmark = pytest.mark.conformance

HERE = Path(__file__).resolve()
PYTHON = os.environ.get("OPBOX_ORACLE_PYTHON") or str(HERE.parents[2] / ".venv-mxnet" / "bin" / "python")
GRAPHS = [
    "attributes",
    "blocked_loss",
    "convolutional",
    "group_of_losses",
    "lstm",
    "mlp",
    "multi_output",
    "residual_sums",
    "scaled_loss",
    "shared_weights",
    "variable_heads",
    "views",
]
CPU = backend_for("cpu")


def ask(folder, *files):
    done = subprocess.run([PYTHON, HERE.with_name("mxnet_graphs.py"), folder, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with what MXNet says."""
    if not Path(PYTHON).exists():
        pytest.skip("no MXNet: make conformance sets it up, or name its Python in OPBOX_ORACLE_PYTHON")
    folder = tmp_path_factory.mktemp("mxnet")
    ask(folder)
    return folder


def expected(folder, name):
    return json.loads((folder / f"{name}.json").read_text()), dict(np.load(folder / f"{name}.npz"))


def shapes_of(read):
    return {name: tuple(dims) for name, dims in read["given"].items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_lists_shapes_and_types(recorded, name):
    read, _ = expected(recorded, name)
    graph = load(read["symbol"])
    assert graph.argument_names == read["arg_names"]
    assert graph.output_names == read["out_names"]
    assert graph.auxiliary_names == read["aux_names"]
    inferred = infer_shape(graph, shapes_of(read))
    for key in ("arg_shapes", "out_shapes", "aux_shapes"):
        assert [list(shape) for shape in getattr(inferred, key)] == read[key]
    types = infer_type(graph, {next(iter(read["given"])): "float32"}, partial=read["arg_types"] is None)
    if read["arg_types"] is not None:
        assert [dtype.name for dtype in types.arg_types] == read["arg_types"]


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_read_is_written_as_mxnet_writes_it(recorded, name):
    read, _ = expected(recorded, name)
    ours, theirs = dump(load(read["symbol"])), json.loads(read["symbol"])
    for node in theirs["nodes"]:
        for entry in node["inputs"]:
            entry[2] = 0  # MXNet counts the writers of an auxiliary state here; nobody reads it
    for node in ours["nodes"]:
        for entry in node["inputs"]:
            entry[2] = 0
    # These count MXNet's own hidden outputs too (Pooling's workspace); no reader uses them.
    del ours["node_row_ptr"], theirs["node_row_ptr"]
    assert ours == theirs


@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_gradients_and_states(recorded, name):
    read, values = expected(recorded, name)
    graph = load(read["symbol"])

    def of(kind):
        return {key.partition(":")[2]: array for key, array in values.items() if key.startswith(f"{kind}:")}

    args, aux = of("arg"), of("aux")
    grads = {n: np.full(a.shape, np.nan, a.dtype) for n, a in args.items()}
    ex = bind(graph, args=args, grads=grads, aux=aux, backend=CPU, random=CPU.random(0))
    ex.forward(is_train=True)
    needed = any(value >= 0 for value in ex.plan.head_grads)
    assert needed == bool(values["needs_heads"])
    ex.backward([values[f"head:{i}"] for i in range(len(ex.outputs))] if needed else [])
    for i, out in enumerate(ex.outputs):
        np.testing.assert_allclose(out, values[f"out:{i}"], rtol=1e-4, atol=1e-5)
    for argument, grad in of("grad").items():
        np.testing.assert_allclose(grads[argument], grad, rtol=1e-3, atol=1e-5, err_msg=argument)
    for state, new in of("new").items():
        np.testing.assert_allclose(aux[state], new, rtol=1e-4, atol=1e-5, err_msg=state)


def test_mxnet_loads_what_we_write(recorded, tmp_path):
    paths = []
    for name in GRAPHS:
        read, _ = expected(recorded, name)
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"symbol": json.dumps(dump(load(read["symbol"]))), "given": read["given"]}))
        paths.append(path)
    ask(tmp_path, *paths)
    for name, path in zip(GRAPHS, paths, strict=True):
        again, read = json.loads(Path(f"{path}.told").read_text()), expected(recorded, name)[0]
        for key in ("arg_names", "out_names", "aux_names", "arg_shapes", "out_shapes", "aux_shapes"):
            assert again[key] == read[key]


def aged(text):
    """The symbol as MXNet 0.8 wrote it: `param` and `attr`, two-part inputs, no auxiliary inputs, no version."""
    new = json.loads(text)
    aux = {e[0] for n in new["nodes"] if n["op"] == "BatchNorm" for e in n["inputs"][3:]}
    inputs = [i for i in range(len(new["nodes"])) if i not in aux]
    place = {old: i for i, old in enumerate(inputs)}
    nodes = []
    for i in inputs:
        node = new["nodes"][i]
        attrs = node.get("attrs", {})
        hidden = {k: v for k, v in attrs.items() if k.startswith("__")}
        nodes.append(
            {
                "op": node["op"],
                "name": node["name"],
                "param": {k: v for k, v in attrs.items() if k not in hidden} if node["op"] != "null" else {},
                "attr": {
                    k.strip("_"): v for k, v in hidden.items() if k.strip("_") in ("lr_mult", "wd_mult", "ctx_group")
                },
                "inputs": [[place[e[0]], e[1]] for e in node["inputs"] if e[0] not in aux],
                "backward_source_id": -1,
            }
        )
    heads = [[place[h[0]], h[1]] for h in new["heads"]]
    return {"nodes": nodes, "arg_nodes": [i for i, n in enumerate(nodes) if n["op"] == "null"], "heads": heads}


@pytest.mark.parametrize("name", ["convolutional", "attributes", "mlp", "lstm"])
def test_an_old_file_is_upgraded_as_mxnet_upgrades_it(recorded, name, tmp_path):
    read, _ = expected(recorded, name)
    old = aged(read["symbol"])
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"symbol": json.dumps(old), "given": read["given"]}))
    ask(tmp_path, path)
    theirs = json.loads((tmp_path / "old.json.told").read_text())
    graph = load(old)
    assert graph.argument_names == theirs["arg_names"]
    assert graph.auxiliary_names == theirs["aux_names"]
    assert [list(s) for s in infer_shape(graph, shapes_of(read)).arg_shapes] == theirs["arg_shapes"]
    hidden = {
        node["name"]: {k: v for k, v in node.get("attrs", {}).items() if k.startswith("__")}
        for node in json.loads(theirs["symbol"])["nodes"]
    }
    assert {n.name: {k: v for k, v in n.attrs.items() if k.startswith("__")} for n in graph.nodes} == hidden
