"""Binding: arrays are checked against the graph, the graph is compiled for them, and the plan gets its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from opbox_ops.backend import Backend, RandomSource
from opbox_ops.compute import Array
from opbox_ops.infer import show_shape
from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import BadRequestError, DTypeError, LimitError, ShapeError

from ..graph.ir import Graph
from ..graph.passes.common_expressions import merge_common_expressions
from ..task import graph_budget
from .compile import compile_plan
from .inference import Inference, may_infer_apart
from .plan import Plan
from .run import BoundPlan

__all__ = ["bind"]


@collection_paused()
def bind(
    graph: Graph,
    *,
    args: Mapping[str, Array],
    grads: Mapping[str, Array] | None = None,
    grad_req: Mapping[str, str] | None = None,
    aux: Mapping[str, Array] | None = None,
    backend: Backend,
    random: RandomSource,
    max_bytes: int | None = None,
    share: bool = True,
    level: str | None = None,
    eliminate_common_expr: bool = True,
    infer_apart: bool = True,
) -> BoundPlan:
    """Compile `graph` for these arrays and bind it to them.

    Args:
        graph: the graph.
        args, aux: an array for every argument and auxiliary state; read (and aux written) in place on each run.
        grads: arrays that backward writes, for the arguments that want a gradient.
        grad_req: write, add or null by argument; by default write for those in `grads`, null for the others.
        backend, random: the device, and its random source.
        max_bytes: the most that the executor may allocate, arena and outputs together; checked before it does.
        share: False gives every intermediate value memory of its own, for comparison.
        level: the highest level of computes to choose; by default what OPBOX_COMPUTE_LEVEL says.
        eliminate_common_expr: whether equal calls on the same inputs are computed once.
        infer_apart: whether an inference may run by a plan without backward. False where each is followed by one.

    Raises:
        BadRequestError: an array is missing or is nobody's, or a req is not write, add or null.
        ShapeError, DTypeError: arrays contradict the graph.
        UnsupportedError: an operator has no compute for the device, or no gradient.
        LimitError: more memory than `max_bytes`.

    Example:
        >>> executor = bind(graph, args={"data": x, "fc1_weight": w, "fc1_bias": b}, backend=cpu, random=cpu.random(0))
        >>> executor.forward(is_train=False)
        >>> executor.outputs[0]
    """
    grads, aux = dict(grads or {}), dict(aux or {})
    _complete("argument", graph.argument_names, args)
    _complete("auxiliary state", graph.auxiliary_names, aux)
    req = _requests(graph, grads, grad_req or {})
    for name, array in grads.items():
        _same(name, array, args[name])
    arrays = {**args, **aux}
    with graph_budget():
        merged = merge_common_expressions(graph).graph if eliminate_common_expr else graph
    compiled = partial(
        compile_plan,
        merged,
        {name: tuple(array.shape) for name, array in arrays.items()},
        {name: array.dtype for name, array in arrays.items()},
        device=backend.device_type,
        strided={
            (kind, name)
            for kind, bound in (("arg", args), ("aux", aux), ("grad", grads))
            for name, array in bound.items()
            if not array.flags.c_contiguous
        },
        share=share,
        level=level,
    )
    with graph_budget():
        plan = compiled(req, max_bytes=max_bytes)
    if max_bytes is not None and plan.allocates > max_bytes:
        raise LimitError(f"the executor needs {plan.allocates:,} bytes: expected at most {max_bytes:,}")
    inference = None
    if share and infer_apart and may_infer_apart(plan):
        inference = Inference(_for_inference(compiled, plan), plan)
    return BoundPlan(plan, args, grads, aux, backend, random, inference=inference)


def _for_inference(compiled: Callable[..., Plan], training: Plan) -> Callable[[], Plan]:
    """Return a function that compiles the plan for inference, which runs in the memory of `training`."""

    def compile_it() -> Plan:
        with graph_budget(), collection_paused():
            # Where the plan that trains has no room for packed weights, neither has this one.
            return compiled({}, max_bytes=None if training.packed_bytes else 0, spare=training.arena_bytes // 2)

    return compile_it


def _complete(what: str, names: list[str], arrays: Mapping[str, Array]) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise BadRequestError(f"{what} {missing[0]!r} has no array: give one for each of {', '.join(missing[:10])}")
    known = set(names)
    extra = [name for name in arrays if name not in known]
    if extra:
        raise BadRequestError(f"{extra[0]!r} is no {what} of the graph: expected {', '.join(names[:10]) or 'none'}")


def _requests(graph: Graph, grads: Mapping[str, Array], grad_req: Mapping[str, str]) -> dict[str, str]:
    known = set(graph.argument_names)
    for name in (*grads, *grad_req):
        if name not in known:
            raise BadRequestError(
                f"{name!r} is no argument of the graph: expected {', '.join(graph.argument_names[:10])}"
            )
    for name, req in grad_req.items():
        if req not in ("write", "add", "null"):
            raise BadRequestError(f"grad_req of {name!r}: expected write, add or null, got {req!r}")
        if req != "null" and name not in grads:
            raise BadRequestError(f"grad_req of {name!r} is {req!r}: expected an array for its gradient, got none")
    return {name: grad_req.get(name, "write") for name in grads}


def _same(name: str, grad: Array, arg: Array) -> None:
    if tuple(grad.shape) != tuple(arg.shape):
        raise ShapeError(
            f"gradient of {name!r}: expected {show_shape(tuple(arg.shape))}, got {show_shape(tuple(grad.shape))}"
        )
    if grad.dtype != arg.dtype:
        raise DTypeError(f"gradient of {name!r}: expected type {arg.dtype}, got {grad.dtype}")
