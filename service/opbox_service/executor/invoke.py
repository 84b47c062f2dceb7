"""Calling one operator on arrays, without a graph.

What a call needs beside its arrays (parsed parameters, shapes, types, temporaries, the compute's own preparation)
depends only on the operator, its attributes and the shapes and types of its inputs. It is worked out once and kept for
the calls that follow: a `CallForm` for an operator with its attributes, a `PreparedCall` for each of its signatures.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import Backend, RandomSource
from opbox_ops.compute import Array, Mode, OpContext
from opbox_ops.operator import Op
from opbox_ops.params import Params
from opbox_protocol.errors import LimitError, MXNetError

from .allocation import allocate
from .calls import at_node
from .prepared_call import PreparedCall, prepare, sentence_of

__all__ = ["CallForm", "form_of", "invoke"]

CACHED_FORMS = 4096
CACHED_CALLS = 4096

_forms: OrderedDict[Any, CallForm] = OrderedDict()
_calls: OrderedDict[Any, PreparedCall] = OrderedDict()
"""Caches of forms and of prepared calls; each drops its oldest entry first (docs/design/decisions.md says why)."""
_lock = Lock()
_NOTHING_SHARED = ()


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
    form = form_of(registry.get(op) if isinstance(op, str) else op, params, level)
    return form.run(inputs, backend, random, is_train, outputs, max_bytes)


def form_of(op: Op, params: Params | Mapping[str, Any], level: str | None = None) -> CallForm:
    """An operator with its attributes; the one that was made before, where they are the same.

    Raises:
        ParamError: they are not the operator's.
    """
    if op.get_attr("TUserCode"):
        # Its parameters belong to the session at hand, and so does what is prepared with them.
        return CallForm(op, params, level, recurs=False)
    key: Any
    if isinstance(params, Params):
        key = (op, level, params)
    else:
        # Types too: 1 and True are one key, and may not both be the parameter's.
        key = (op, level, *params.items(), *map(type, params.values()))
    try:
        form = _forms.get(key)
    except TypeError:  # a list, from JSON
        return CallForm(op, params, level, recurs=False)
    if form is None:
        form = CallForm(op, params, level)
        _keep(_forms, key, form, CACHED_FORMS)
    return form


class CallForm:
    """An operator with its attributes.

    Args:
        op: the operator.
        params: its parameters, parsed or not.
        level: the highest level of computes to choose.
        recurs: whether it is met again, so that its prepared calls are kept.

    Raises:
        ParamError: the parameters are not the operator's.
    """

    __slots__ = ("_counts", "_last", "_level", "_others", "op", "params", "recurs")

    def __init__(
        self, op: Op, params: Params | Mapping[str, Any], level: str | None = None, recurs: bool = True
    ) -> None:
        self.op = op
        self.params = params if isinstance(params, op.params) else _parsed(op, params)
        self._level = level
        self.recurs = recurs
        self._counts = op.get_attr("FOutputShapes")
        self._last: tuple[Any, PreparedCall] | None = None
        numbers = op.get_attr("TNumbers")
        self._others: Any = None
        if recurs and numbers and not isinstance(params, Params):
            # What is prepared is the same for all values of these parameters: a learning rate changes every step.
            others = {key: value for key, value in params.items() if key not in numbers}
            self._others = (op, level, *others.items(), *map(type, others.values()))

    def run(
        self,
        inputs: Sequence[Array],
        backend: Backend,
        random: RandomSource,
        is_train: bool = False,
        outputs: Sequence[Array | None] | None = None,
        max_bytes: int | None = None,
        silent: bool = False,
    ) -> list[Array]:
        """Run the operator; see `invoke`.

        Args:
            silent: whether NumPy has been told already to be silent about NaN and infinity.
        """
        call = self._call(inputs, outputs, backend.device_type)
        if max_bytes is not None and call.nbytes > max_bytes:
            raise LimitError(f"{call.node.name}: the call needs {call.nbytes:,} bytes: expected at most {max_bytes:,}")
        shared: tuple[tuple[int, int], ...] = _NOTHING_SHARED
        copies: Sequence[tuple[int, Array]] = ()
        try:
            if outputs is None and len(call.outputs) == 1:
                ((shape, dtype),) = call.outputs
                # Who keeps it counts it, as with all small arrays (quota.MeteredBackend).
                targets = [np.empty(shape, dtype) if call.tiny else allocate(backend, shape, dtype, overwritten=True)]
            elif outputs is None:
                targets = [allocate(backend, shape, dtype, overwritten=True) for shape, dtype in call.outputs]
            else:
                targets, shared, copies = call.into(inputs, outputs, backend)
        except LimitError as error:
            raise sentence_of(at_node(error, call.node), self.op) from None
        ready = call.ready.get(shared)
        try:
            # Popping is one step even with threads, and a call inside the call finds the list without what is in use.
            run = ready.pop() if ready else None
        except IndexError:
            run = None
        try:
            if silent and run is not None:
                run(inputs, targets)
            elif silent:
                _run_once(call, inputs, targets, shared, backend, random, is_train)
            else:
                with np.errstate(all="ignore"):
                    if run is not None:
                        run(inputs, targets)
                    else:
                        _run_once(call, inputs, targets, shared, backend, random, is_train)
            if run is not None and ready is not None:
                ready.append(run)
        except Exception as error:
            raise sentence_of(at_node(error, call.node), self.op) from error
        for k, target in copies:
            target[...] = targets[k]
            targets[k] = target
        return targets if len(targets) == call.visible else targets[: call.visible]

    def _call(self, inputs: Sequence[Array], outputs: Sequence[Array | None] | None, device: str) -> PreparedCall:
        """The prepared call for arrays of these shapes and types."""
        signature: tuple[Any, ...]
        if len(inputs) == 1:
            (x,) = inputs
            signature = (device, x.shape, x.dtype)
        elif len(inputs) == 2:
            x, y = inputs
            signature = (device, x.shape, y.shape, x.dtype, y.dtype)
        else:
            signature = (device, *[x.shape for x in inputs], *[x.dtype for x in inputs])
        if outputs is not None:
            signature = (signature, *[None if x is None else (x.shape, x.dtype) for x in outputs])
        counted = None
        if self._counts is not None:
            counted = _counted_shapes(self._counts, self.params, inputs)
            signature = (signature, counted)
        last = self._last
        if last is not None and last[0] == signature:
            return last[1]
        call = _calls.get((self, signature))
        if call is not None:
            self._last = signature, call
            return call
        like = _calls.get((self._others, signature)) if self._others else None
        if like is not None:
            call = like.with_params(self.params)
        else:
            call = prepare(self.op, self.params, inputs, device, outputs, self._level, counted)
            if self._others:
                _keep(_calls, (self._others, signature), call, CACHED_CALLS)
        if self.recurs:
            _keep(_calls, (self, signature), call, CACHED_CALLS)
        return call


def _run_once(
    call: PreparedCall,
    inputs: Sequence[Array],
    targets: Sequence[Array],
    shared: tuple[tuple[int, int], ...],
    backend: Backend,
    random: RandomSource,
    is_train: bool,
) -> None:
    """Run a call of which none is ready."""
    if not call.again(inputs, targets, shared, random, backend, is_train):
        context = OpContext(backend.xp, backend.special, random, backend, Mode(is_train))
        call.first(inputs, targets, shared, context)


def _keep(cache: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    with _lock:
        cache[key] = value
        while len(cache) > most:
            cache.popitem(last=False)


def _counted_shapes(rule: Any, params: Params, inputs: Sequence[Array]) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes that FOutputShapes counts in the inputs' values; None where the shape rule will refuse them."""
    try:
        return tuple(rule(params, inputs))
    except (ValueError, IndexError):
        return None


def _parsed(op: Op, attrs: Params | Mapping[str, Any]) -> Params:
    try:
        return op.parse(dict(attrs))
    except MXNetError as error:
        raise sentence_of(error.at(op.name, None), op) from error
