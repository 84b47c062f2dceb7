"""Calling one operator on arrays, without a graph.

What a call needs beside its arrays (parsed parameters, shapes, types, temporaries) depends only on the operator, its
attributes and the shapes and types of its inputs; it is worked out once and kept for the calls that follow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import Backend, RandomSource
from opbox_ops.compute import Array, ArraySpec, CallSpec, Compute, Mode, OpContext, OpReq, Temp
from opbox_ops.infer import known, show_shape
from opbox_ops.node import Entry, Node
from opbox_ops.params import Params
from opbox_ops.registry import Op
from opbox_protocol.errors import (
    BadRequestError,
    LimitError,
    MXNetError,
    ShapeError,
    UnderdeterminedError,
)

from ..graph.passes.fixpoint import failed_rule, tell
from ..graph.passes.infer_shape import apply_shape_rule
from ..graph.passes.infer_type import apply_type_rule
from .memory import allocate, bytes_of
from .run import at_node

__all__ = ["invoke"]

CACHED_CALLS = 4096
SPARE_BYTES = 1 << 16
"""Temporaries up to this size are kept for the next call (on the CPU, where a call is over when it returns)."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    node: Node
    compute: Compute
    spec: CallSpec
    params: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    nbytes: int
    visible: int
    temps: tuple[Temp, ...]
    spare: list[tuple[Array, ...]] | None
    inplace: dict[int, tuple[int, ...]]
    req: tuple[OpReq, ...]
    create_state: Any


_cache: OrderedDict[Any, _Prepared] = OrderedDict()
_lock = Lock()
_NO_COPIES: Sequence[tuple[int, Array]] = ()


def invoke(
    op: str | Op,
    params: Params | Mapping[str, Any],
    inputs: Sequence[Array],
    *,
    backend: Backend,
    random: RandomSource,
    is_train: bool = False,
    outputs: Sequence[Array | None] | None = None,
    max_bytes: int | None = None,
    level: str | None = None,
) -> list[Array]:
    """Run one operator.

    Args:
        op: the operator, or its name.
        params: its parameters, parsed or not.
        inputs: its inputs in order, auxiliary states included (they may be written).
        backend, random: the device, and its random source.
        is_train: the mode.
        outputs: arrays to write the visible outputs to; one of them may be one of the inputs, as in an update.
        max_bytes: the most that the outputs and temporaries may take together; checked before they are allocated.
        level: the highest level of computes to choose; by default what OPBOX_COMPUTE_LEVEL says.

    Returns:
        The visible outputs.

    Raises:
        ParamError, ShapeError, DTypeError: as the operator's rules say, with its name.
        UnsupportedError: no compute for this device and these inputs.
        LimitError: more memory than `max_bytes`, or than there is.

    Example:
        >>> invoke("FullyConnected", {"num_hidden": 10}, [x, w, b], backend=cpu, random=cpu.random(0))
    """
    definition = registry.get(op) if isinstance(op, str) else op
    if definition.get_attr("TUserCode") and not isinstance(params, Params):
        # These belong to the session at hand: unhashable, so the call is not kept for another.
        params = _parsed(definition, params)
    counted = definition.get_attr("FOutputShapes")
    by_values = None if counted is None else _counted_shapes(definition, counted, params, inputs)
    key = (
        definition,
        backend.device_type,
        tuple(params.items()) if isinstance(params, dict) else params,
        tuple([(array.shape, array.dtype) for array in inputs]),
        None if outputs is None else tuple([None if o is None else (o.shape, o.dtype) for o in outputs]),
        level,
        by_values,
    )
    try:
        call = _cache[key]
        _cache.move_to_end(key)
    except (KeyError, TypeError):
        call = _prepare(definition, params, inputs, backend.device_type, outputs, level, key, by_values)
    if max_bytes is not None and call.nbytes > max_bytes:
        raise LimitError(f"{call.node.name}: the call needs {call.nbytes:,} bytes: expected at most {max_bytes:,}")
    if outputs is None:
        req, copies = call.req, _NO_COPIES
        arrays = [allocate(backend, shape, dtype) for shape, dtype in zip(call.shapes, call.dtypes, strict=True)]
    else:
        arrays, req, copies = _into(call, inputs, outputs, backend)
    context = OpContext(backend.xp, backend.special, random, backend, Mode(is_train))
    if call.temps:
        context.temp = _temporaries(call, backend)
    try:
        if call.create_state is not None:
            context.state = call.create_state(
                call.params, context, [array.shape for array in inputs], [array.dtype for array in inputs]
            )
        with np.errstate(all="ignore"):
            context.call = call.spec
            context.req = req
            call.compute(call.params, context, inputs, arrays)
    except Exception as error:
        raise _named(at_node(error, call.node), call.node.op) from error
    if call.spare is not None:
        call.spare.append(context.temp)
    for k, target in copies:
        target[...] = arrays[k]
        arrays[k] = target
    return arrays if len(arrays) == call.visible else arrays[: call.visible]


def _counted_shapes(
    definition: Op, rule: Any, params: Params | Mapping[str, Any], inputs: Sequence[Array]
) -> tuple[tuple[int, ...], ...] | None:
    """What FOutputShapes counts in the inputs' values; None where their shapes are wrong, for the shape rule to say."""
    parsed = params if isinstance(params, Params) else _parsed(definition, params)
    try:
        return tuple(rule(parsed, inputs))
    except (ValueError, IndexError):
        return None


def _parsed(definition: Op, attrs: Mapping[str, Any]) -> Params:
    try:
        return definition.parse(attrs)
    except MXNetError as error:
        raise _named(error.at(definition.name, None), definition) from error


def _temporaries(call: _Prepared, backend: Backend) -> tuple[Array, ...]:
    # Popping is one step even with threads, and a call inside the call finds the list without what is in use.
    if call.spare:
        try:
            return call.spare.pop()
        except IndexError:
            pass
    return tuple([allocate(backend, temp.shape, temp.dtype) for temp in call.temps])


def _into(
    call: _Prepared, inputs: Sequence[Array], outputs: Sequence[Array | None], backend: Backend
) -> tuple[list[Array], tuple[OpReq, ...], Sequence[tuple[int, Array]]]:
    """The arrays to compute into: the given ones, or fresh ones where they overlap an input that is still read."""
    arrays: list[Array] = []
    req = list(call.req)
    copies: list[tuple[int, Array]] = []
    for k, (shape, dtype) in enumerate(zip(call.shapes, call.dtypes, strict=True)):
        target = outputs[k] if k < len(outputs) else None
        if target is None:
            arrays.append(allocate(backend, shape, dtype))
            continue
        touching = [
            i for i, array in enumerate(inputs) if array is target or backend.xp.may_share_memory(array, target)
        ]
        if not target.flags.c_contiguous or target.dtype != dtype:
            arrays.append(allocate(backend, shape, dtype))
            copies.append((k, target))
        elif not touching:
            arrays.append(target)
        elif len(touching) == 1 and inputs[touching[0]] is target and touching[0] in call.inplace.get(k, ()):
            arrays.append(target)
            req[k] = OpReq.INPLACE
        else:
            arrays.append(allocate(backend, shape, dtype))
            copies.append((k, target))
    return arrays, tuple(req), copies


def _prepare(
    definition: Op,
    params: Params | Mapping[str, Any],
    inputs: Sequence[Array],
    device: str,
    outputs: Sequence[Array | None] | None,
    level: str | None,
    key: Any,
    by_values: tuple[tuple[int, ...], ...] | None = None,
) -> _Prepared:
    parsed = params if isinstance(params, definition.params) else definition.parse(dict(params))
    names = definition.input_names(parsed)
    if len(inputs) != len(names):
        raise BadRequestError(
            f"{definition.name}: expected {len(names)} inputs ({', '.join(names)}), got {len(inputs)}"
        )
    variables = tuple(Entry(Node(None, name)) for name in names)
    node = Node(definition, definition.name, {}, parsed, variables)
    count, visible = definition.num_outputs(parsed), definition.num_visible_outputs(parsed)
    targets = list(outputs or [])
    if len(targets) > count:
        raise BadRequestError(f"{definition.name}: expected at most {count} outputs, got {len(targets)}")
    targets += [None] * (count - len(targets))
    out_shapes = [None if o is None else tuple(o.shape) for o in targets] if by_values is None else list(by_values)
    try:
        # A list of the given outputs' shapes lets a rule check them, and complete what the inputs leave open.
        shapes = apply_shape_rule(node, [array.shape for array in inputs], out_shapes)
        types = apply_type_rule(
            node, [array.dtype for array in inputs], [None if o is None else o.dtype for o in targets]
        )
    except MXNetError as error:
        raise _named(tell(error, node), definition) from None
    except Exception as error:
        given_shapes = ", ".join(show_shape(tuple(array.shape)) for array in inputs)
        raise _named(tell(failed_rule(error, given_shapes), node), definition) from error
    for side, side_name in zip(shapes, ("input", "output"), strict=True):
        if not all(map(known, side)):
            told_shapes = ", ".join(map(show_shape, side))
            raise UnderdeterminedError(f"{definition.name}: the shapes of its {side_name}s stay unknown: {told_shapes}")
    settled = tuple(shape for shape in shapes[1] if shape is not None)
    dtypes = tuple(dtype for dtype in types[1] if dtype is not None)
    if len(dtypes) != count:
        raise UnderdeterminedError(f"{definition.name}: the types of its outputs stay unknown")
    for k, target in enumerate(targets):
        if target is not None and tuple(target.shape) != settled[k]:
            raise ShapeError(
                f"{definition.name}: output {k}: expected {show_shape(settled[k])}, got {show_shape(target.shape)}"
            )
    spec = CallSpec(
        device,
        tuple([ArraySpec(tuple(array.shape), array.dtype) for array in inputs]),
        tuple(map(ArraySpec, settled, dtypes)),
    )
    try:
        compute = definition.choose(parsed, spec, level)
    except MXNetError as error:
        raise _named(error.at(definition.name, definition.name), definition) from None
    temps = definition.temps(compute, parsed, spec)
    temp_bytes = sum(bytes_of(temp.shape, temp.dtype) for temp in temps)
    option = definition.get_attr("FInplaceOption", ())
    inplace: dict[int, tuple[int, ...]] = {}
    for i, o in option(parsed) if callable(option) else option:
        inplace[o] = (*inplace.get(o, ()), i)
    call = _Prepared(
        node,
        compute,
        spec,
        parsed,
        settled,
        dtypes,
        sum(map(bytes_of, settled, dtypes)) + temp_bytes,
        visible,
        temps,
        [] if device == "cpu" and temps and temp_bytes <= SPARE_BYTES else None,
        inplace,
        (OpReq.WRITE,) * count,
        definition.get_attr("FCreateOpState"),
    )
    _keep(key, call)
    return call


def _keep(key: Any, call: _Prepared) -> None:
    try:
        hash(key)
    except TypeError:
        return
    with _lock:
        _cache[key] = call
        while len(_cache) > CACHED_CALLS:
            _cache.popitem(last=False)


def _named(error: MXNetError, op: Op | None) -> MXNetError:
    """Without a graph, the node's name is the operator's: say it once."""
    name = op.name if op is not None else ""
    doubled, once = f"{name} ({name}): ", f"{name}: "
    error.message = error.message.replace(doubled, once, 1)
    error.args = (error.message,)
    return error
