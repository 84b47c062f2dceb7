"""The arrays that the table's networks are run on, and running them here."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.executor import BoundPlan, bind
from opbox_service.graph.json import load

from .networks import NETWORKS, build

__all__ = ["CPU", "arrays_for", "bound", "filled", "plain_scopes", "run", "symbol"]

CPU = backend_for("cpu")


def symbol(name: str) -> Any:
    """A network of the table."""
    return build(mx, name)


def plain_scopes(text: str) -> str:
    """A file without the numbers in names of scopes: they count all loops that a program has made."""
    return re.sub(r'("__subgraph_name__": ")([^"]*)"', lambda m: m[1] + re.sub(r"\d+", "", m[2]) + '"', text)


def arrays_for(name: str, dtype: str = "float32") -> tuple[dict[str, Any], list[Any]]:
    """The arguments of a network, and a gradient for each of its outputs."""
    network = NETWORKS[name]
    draw = np.random.RandomState(zlib.crc32(name.encode()))
    arguments = {
        key: draw.uniform(network.low, network.high, shape).astype(dtype) for key, shape in network.shapes.items()
    }
    net = symbol(name)
    shapes = net.infer_shape(**network.shapes)[1]
    return arguments, [draw.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def filled(name: str, key: str, array: Any) -> Any:
    """An output without the rows that MXNet leaves undefined."""
    rows = NETWORKS[name].rows or {}
    number = int(key[4:]) if key.startswith("out:") else -1
    return array[: rows[number]] if number in rows else array


def bound(net: Any, arguments: dict[str, Any], *, grads: bool = True, req: str = "write", start: float = 0) -> Any:
    """An executor of the engine's own, and the gradients' arrays."""
    graph = load(net.tojson())
    args = {key: CPU.put(value) for key, value in arguments.items() if key in graph.argument_names}
    aux = {key: CPU.put(value) for key, value in arguments.items() if key in graph.auxiliary_names}
    arrays = {key: CPU.put(np.full_like(value, start)) for key, value in args.items()} if grads else {}
    requests = dict.fromkeys(arrays, req)
    executor: BoundPlan = bind(
        graph, args=args, grads=arrays, grad_req=requests, aux=aux, backend=CPU, random=CPU.random(1)
    )
    return executor, arrays


def run(
    net: Any, arguments: dict[str, Any], heads: list[Any], *, req: str = "write", start: float = 0
) -> dict[str, Any]:
    """Outputs and gradients, named as the oracle names them."""
    executor, grads = bound(net, arguments, req=req, start=start)
    executor.forward(is_train=True)
    results = {f"out:{k}": np.array(output) for k, output in enumerate(executor.outputs)}
    executor.backward(heads)
    return results | {f"grad:{key}": np.array(value) for key, value in grads.items()}
