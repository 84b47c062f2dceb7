"""Whole plans on the GPU: the CPU's numbers, and what a run does to the device.

While a plan runs nothing is to be allocated, nothing synchronises, and nothing is called that stream capture refuses.
What does so still stands in ALLOCATE and REFUSED, by family and operator, which may only shrink: an operator in a list
whose calls are clean fails here.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.compute import Mode, OpContext, OpReq
from opbox_service.executor import bind
from opbox_service.graph.json import load
from tests.cases import families
from tests.executor.test_allocations import lenet, recurrent, residual
from tests.ops.harness import Call, Run
from tests.switches import switch_off

from .not_clean import ALLOCATE, REFUSED
from .spy import Watch, watched

MODELS = {"lenet": lenet, "residual": residual, "recurrent": recurrent}


def executor_of(model: Any, device: str, req: str) -> Any:
    """The executor of a network on a device, with numbers that are the same on each, and its gradients."""
    backend = backend_for(device)
    with mx.name.NameManager():
        symbol, data_shapes = model()
    shapes, _, states = symbol.infer_shape(**data_shapes)
    rng = np.random.default_rng(0)
    args = {
        name: backend.put(rng.uniform(-0.5, 0.5, shape).astype("f") if name not in data_shapes else _data(rng, shape))
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
    }
    aux = {
        name: backend.put(np.ones(shape, "f"))
        for name, shape in zip(symbol.list_auxiliary_states(), states, strict=True)
    }
    grads = {name: backend.put(np.ones(a.shape, "f")) for name, a in args.items() if name not in data_shapes}
    executor = bind(
        load(symbol.tojson()),
        args=args,
        grads=grads,
        grad_req=dict.fromkeys(grads, req),
        aux=aux,
        backend=backend,
        random=backend.random(0),
    )
    return executor, grads, aux


def _data(rng: Any, shape: tuple[int, ...]) -> Any:
    return rng.integers(0, 5, shape).astype("f") if len(shape) == 2 else rng.uniform(0, 1, shape).astype("f")


@pytest.mark.parametrize("device", ["gpu:0", "gpu:1"])
@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_has_the_cpus_numbers(gpu: Any, name: str, req: str, device: str) -> None:
    is_train = name != "residual"  # dropout's masks are the device's own
    results = []
    for place in ("cpu", device):
        backend = backend_for(place)
        with backend.scope():
            executor, grads, aux = executor_of(MODELS[name], place, req)
            for _ in range(2):
                executor.forward(is_train=is_train)
                executor.backward()
            arrays = {f"out{k}": out for k, out in enumerate(executor.outputs)} | grads | aux
            results.append({key: backend.get(array) for key, array in arrays.items()})
    for key, expected in results[0].items():
        # Sums of some hundreds of products in another order.
        np.testing.assert_allclose(results[1][key], expected, rtol=1e-4, atol=1e-5, err_msg=key)


# Those without convolutions, which cuDNN's pretended search would take minutes for.
NETWORKS: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {"data": (2, 784)},
    "lstm": {"data": (2, 49, 128), "h": (2, 256), "c": (2, 256)},
    "pointwise": {"data": (2, 1024)},
    "transformer": {"data": (1, 16, 512)},
    "lstm_layers": {"data": (5, 2, 200), "h": (2, 2, 256), "c": (2, 2, 256)},
    "gru_layers": {"data": (5, 2, 200), "h": (2, 2, 256)},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_benchmarks_have_plans(gpu: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    peer_networks, more_networks = map(importlib.import_module, ("peer_networks", "more_networks"))
    of = more_networks if hasattr(more_networks, name) else peer_networks
    symbol = peer_networks.lstm(49) if name == "lstm" else getattr(of, name)()
    executor, _, _ = executor_of(lambda: (mx.sym.load_json(json.dumps(symbol)), NETWORKS[name]), "gpu:0", "write")
    assert {step.call.device for step in executor.plan.steps} == {"gpu"}


def steps_of(executor: Any) -> dict[str, Watch]:
    """What each step of a plan does, by operator, forward and backward."""
    watches: dict[str, Watch] = {}
    executor.forward(is_train=True)
    executor.backward()
    for half in (executor._forward, executor._backward):
        for call, node in zip(half.calls, half.nodes, strict=True):
            with watched() as watch:
                call()
            name = node.op.name if node.op is not None else node.name
            old = watches.get(name)
            if old is not None:
                watch.allocations += old.allocations
                watch.calls.update(old.calls)
            watches[name] = watch
    return watches


def unclean(family: str) -> tuple[set[str], set[str]]:
    """The operators of a family's first rows that allocate, and that call what capture refuses, once they are warm."""
    allocate, refused = set(), set()
    first: dict[str, Any] = {}
    for case in families()[family]:
        first.setdefault(case.op, case)
    for case in first.values():
        run = Run(case, case.dtypes[0], backend_for("gpu:0"))
        run.forward()
        if case.grad and run.wanted():
            run.backward()
        for call in run.calls:
            with no_rubbish(call) as compute, watched() as watch:
                compute()
            if watch.allocations:
                allocate.add(call.node.op.name)
            if watch.refused:
                refused.add(call.node.op.name)
    return allocate, refused


@contextmanager
def no_rubbish(call: Call) -> Iterator[Callable[[], None]]:
    """A call of a row's compute alone, bound as a plan binds it."""
    run, kernel = call.run, call.chosen()
    backend, params, spec = run.backend, call.node.params, call.spec()
    context = OpContext(backend.xp, backend.special, backend.random(0), backend, Mode(run.case.is_train))
    context.temp = tuple(backend.empty(tuple(t.shape), np.dtype(t.dtype)) for t in kernel.temps)
    context.state = run.states.get(call.node.forward or call.node)
    context.call, context.req = spec, (OpReq.WRITE,) * len(call.shapes)
    step = kernel.bind(params, context, call.fresh(), call.empty())
    with np.errstate(all="ignore"):
        step()  # what is made once is made
        yield step


@pytest.mark.parametrize("family", [name for name in families() if name != "parameter_values"])
def test_rows_are_clean(gpu: Any, family: str) -> None:
    for what, seen, listed in zip(
        ("allocate", "call what capture refuses"), unclean(family), (ALLOCATE, REFUSED), strict=True
    ):
        known = set(listed.get(family, "").split())
        assert not seen - known, f"{what}, and did not: {' '.join(sorted(seen - known))}"
        assert not known - seen, f"do not {what} any more: take out {' '.join(sorted(known - seen))}"


@pytest.mark.parametrize("name", MODELS)
def test_the_steps_of_a_plan_are_clean(gpu: Any, name: str) -> None:
    executor, _, _ = executor_of(MODELS[name], "gpu:0", "write")
    listed = [{op for text in table.values() for op in text.split()} for table in (ALLOCATE, REFUSED)]
    steps = steps_of(executor)
    for op, watch in steps.items():
        assert not watch.allocations or op in listed[0], f"{op} allocates {watch.allocations} times"
        assert not watch.refused or op in listed[1], f"{op} calls what capture refuses: {watch.refused}"


def test_between_its_steps_a_plan_does_nothing(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    switch_off(monkeypatch, "cuda-graphs")
    executor, _, _ = executor_of(lenet, "gpu:0", "write")
    alone: dict[str, int] = {}
    for watch in steps_of(executor).values():
        for kind, count in watch.calls.items():
            alone[kind] = alone.get(kind, 0) + count
    with watched() as whole:
        executor.forward(is_train=True)
        executor.backward()
    # But for the gradients that are zero, which are filled.
    if executor._zeros:
        alone["memset"] = alone.get("memset", 0) + len(executor._zeros)
    assert dict(whole.calls) == alone
