"""One operator call as a graph, through the passes and the executor that serve users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.graph.ir import Graph
from opbox_service.graph.json import load

__all__ = ["START", "call_graph", "run_call"]

START = 2.0
"""What gradients hold before a backward that adds."""


def call_graph(op: str, attrs: Mapping[str, Any], names: Sequence[str]) -> Graph:
    """The graph of one call named "op", whose inputs are variables and whose visible outputs are its heads."""
    text = {key: str(value) for key, value in attrs.items()}
    declared = registry.get(op)
    count = declared.num_visible_outputs(declared.parse(text))
    nodes: list[dict[str, Any]] = [{"op": "null", "name": name, "inputs": []} for name in names]
    inputs = [[i, 0, 0] for i in range(len(names))]
    nodes.append({"op": op, "name": "op", "attrs": text, "inputs": inputs})
    return load(
        {"nodes": nodes, "arg_nodes": list(range(len(names))), "heads": [[len(names), k, 0] for k in range(count)]}
    )


def run_call(
    graph: Graph,
    arrays: Mapping[str, Any],
    wanted: Sequence[str],
    heads: Any,
    *,
    req: str = "write",
    is_train: bool = True,
) -> dict[str, Any]:
    """Outputs as `out:0`, gradients as `grad:name`, on the CPU.

    Args:
        graph: of `call_graph`.
        arrays: host arrays of all inputs; not changed.
        wanted: arguments whose gradients are computed.
        heads: `(number, output)` to the gradient that is fed into an output.
        req: "write", or "add": gradients hold START before.
        is_train: the mode.
    """
    cpu = backend_for("cpu")
    args = {name: cpu.put(arrays[name]) for name in graph.argument_names if name in arrays}
    aux = {name: cpu.put(arrays[name]) for name in graph.auxiliary_names if name in arrays}
    grads = {name: np.full_like(args[name], START if req == "add" else np.nan) for name in wanted}
    requests = dict.fromkeys(wanted, req)
    with np.errstate(all="ignore"):
        executor = bind(graph, args=args, grads=grads, grad_req=requests, aux=aux, backend=cpu, random=cpu.random(0))
        executor.forward(is_train=is_train)
        results = {f"out:{k}": out.copy() for k, out in enumerate(executor.outputs)}
        if wanted:
            head_grads = [heads(k, out) if v >= 0 else None for k, (out, v) in enumerate(_heads(executor))]
            executor.backward(head_grads)
            results |= {f"grad:{name}": array for name, array in grads.items()}
    return results


def _heads(executor: Any) -> list[tuple[Any, int]]:
    return list(zip(executor.outputs, executor.plan.head_grads, strict=True))
