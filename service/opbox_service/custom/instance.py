"""Calling a user's forward and backward: handles on the step's own arrays, made once for an executor.

Inputs are read-only. An output that is not wanted is an array that nobody reads, not planned memory, for a NumpyOp
is not told which; and one that is to be added to is made apart for a NumpyOp, which always overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox.ndarray import NDArray
from opbox_ops.compute import Array, Arrays, OpContext, OpReq, Outputs
from opbox_protocol.errors import MXNetError

from .definitions import active
from .description import Description
from .local_session import LocalSession
from .unwritten import Mark, fill_value, mark_of
from .user_traceback import user_error

__all__ = ["OperatorInstance"]

_NAMES = tuple(req.name.lower() for req in OpReq)


class _Prepared:
    """The arguments of one call, and what is to be done after it.

    Attributes:
        inputs, outputs: what they were prepared for.
        context: whose `req` and `call` say how each output is written, and what it is where it is None.
        arguments: forward's or backward's, by name.
        after: (target, apart) of outputs that are brought in place afterwards.
        marks: by its number, each output that the user's code is to write, and its marks; see `unwritten`.
        on_device: whether a NumpyOp reads arrays that are not the host's.
    """

    __slots__ = ("after", "arguments", "context", "inputs", "marks", "on_device", "outputs")

    def __init__(self, context: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        self.context = context
        self.inputs = inputs
        self.outputs = outputs
        self.arguments: dict[str, Any] = {}
        self.after: list[tuple[Array, Array]] = []
        self.marks: dict[int, tuple[Array, Mark | None]] = {}
        self.on_device = False

    def is_for(self, context: OpContext, inputs: Arrays, outputs: Outputs) -> bool:
        return self.inputs is inputs and self.outputs is outputs and self.context is context


class OperatorInstance:
    """An operator of one executor: the state that its forward and backward steps share.

    Args:
        described: its description.
        local: where its arrays are made.
        ctx, shapes, dtypes: as FCreateOpState has them; auxiliary states come last.
    """

    def __init__(
        self, described: Description, local: LocalSession, ctx: OpContext, shapes: list[Any], dtypes: list[Any]
    ) -> None:
        self._described = described
        self._local = local
        self._backend = ctx.backend
        self._is_numpy = described.definition.kind == "_NumpyOp"
        self._is_custom = described.definition.kind == "Custom"
        self._reads = described.backward_reads()
        self._forward: _Prepared | None = None
        self._backward: _Prepared | None = None
        self._is_loss = not any(number < len(described.outputs) for number in self._reads)
        with local.inside():
            self._operator = described.create(local.context, shapes, dtypes)

    def forward(self, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        """Run forward into `outputs`."""
        call = self._forward
        if call is None or not call.is_for(ctx, inputs, outputs):
            call = self._forward = self._prepare_forward(ctx, inputs, outputs)
        if self._is_custom:
            call.arguments["is_train"] = ctx.is_train
        self._call("forward", call)

    def backward(self, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        """Run backward into `outputs`, the gradients of the inputs."""
        call = self._backward
        if call is None or not call.is_for(ctx, inputs, outputs):
            call = self._backward = self._prepare_backward(ctx, inputs, outputs)
        self._call("backward", call)

    def _call(self, method: str, call: _Prepared) -> None:
        arguments = {key: list(value) if type(value) is list else value for key, value in call.arguments.items()}
        if call.on_device:
            arguments = {key: [_host(array) for array in arrays] for key, arrays in arguments.items()}
        for target, mark in call.marks.values():
            # All of it: code that writes a part leaves the rest as it is, and a model has many callers.
            target.fill(fill_value(target.dtype))
            if mark is not None:
                mark.put()
        with self._local.inside(), self._described.definition.names():
            try:
                result = getattr(self._operator, method)(**arguments)
                if result is not None:
                    self._refuse_result(method, result)
            except BaseException as error:
                raise user_error(method, error) from error
        for number, (_, mark) in call.marks.items():
            if mark is not None and mark.take() and not (method == "backward" and self._is_label(number)):
                self._report(method, number)
        for target, apart in call.after:
            result = apart
            if isinstance(apart, np.ndarray) and not isinstance(target, np.ndarray):
                result = self._backend.put(apart)
            target[...] = result

    def _refuse_result(self, method: str, result: Any) -> None:
        """Raise an error for arrays that a method returns: they would be lost, and its outputs would stay unwritten."""
        first = result[0] if isinstance(result, list | tuple) and result else result
        if isinstance(first, NDArray | np.ndarray):
            target = {"forward": "out_data", "backward": "in_grad"}[method]
            how = f"self.assign({target}[0], req[0], value)" if self._is_custom else f"{target}[0][:] = value"
            raise MXNetError(
                f"expected its results to be written into {target}, got {type(result).__name__} returned, "
                f"which nothing reads: write {how}"
            )

    def _is_label(self, number: int) -> bool:
        """Return whether an input has no gradient by its nature, so that MXNet's own operators write none."""
        return number > 0 and (self._is_loss or self._described.arguments[number].endswith("label"))

    def _report(self, method: str, number: int) -> None:
        """Tell the user of an output that his code has not written to; the client says each sentence once."""
        described = self._described
        kind, target, names = {
            "forward": ("output", "out_data", described.outputs),
            "backward": ("gradient", "in_grad", described.arguments),
        }[method]
        how = (
            f"self.assign({target}[{number}], req[{number}], value)"
            if self._is_custom
            else f"{target}[{number}][:] = …"
        )
        filled = "NaN" if np.isnan(fill_value(np.float32)) else "zeros"
        active().warn(
            f"{described.definition.op_type}: {method}: expected {kind} {number} ({names[number]!r}) to be written, "
            f"got nothing, and gives {filled}: write {how}"
        )

    # -- preparing ----------------------------------------------------------------------------------------------

    def _prepare_forward(self, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> _Prepared:
        call = self._new(ctx, inputs, outputs)
        count = len(self._described.arguments)
        call.arguments = {
            "in_data": [self._input(array) for array in inputs[:count]],
            "out_data": self._outputs(call),
        }
        if self._is_custom:
            call.arguments |= {"req": _names(ctx.req), "aux": [self._local.wrap(array) for array in inputs[count:]]}
        return call

    def _prepare_backward(self, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> _Prepared:
        call = self._new(ctx, inputs, outputs)
        described = self._described
        outs, args = len(described.outputs), len(described.arguments)
        read: dict[int, Any] = {number: self._input(array) for number, array in zip(self._reads, inputs, strict=False)}
        names = [f"out_grad[{i}] (of {name})" for i, name in enumerate(described.outputs)]
        names += [f"in_data[{i}] ({name})" for i, name in enumerate(described.arguments)]
        names += [f"out_data[{i}] ({name})" for i, name in enumerate(described.outputs)]
        every = [read[i] if i in read else self._missing(names[i]) for i in range(len(names))]
        grads = every[:outs]
        if not self._is_custom and not any(i in read for i in range(outs)):
            grads = []  # a loss of the 0.9 form is given none
        call.arguments = {
            "out_grad": grads,
            "in_data": every[outs : outs + args],
            "out_data": every[outs + args :],
            "in_grad": self._outputs(call),
        }
        if self._is_custom:
            states = inputs[len(self._reads) :]
            call.arguments |= {"req": _names(ctx.req), "aux": [self._local.wrap(array) for array in states]}
        return call

    def _new(self, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> _Prepared:
        call = _Prepared(ctx, inputs, outputs)
        call.on_device = self._is_numpy and self._backend.device_type != "cpu"
        return call

    def _missing(self, name: str) -> Any:
        if self._is_numpy:
            return None
        return self._local.missing(
            f"{name} is not given to backward: expected declare_backward_dependency (or need_top_grad) to ask for it"
        )

    def _input(self, array: Array) -> Any:
        if not self._is_numpy:
            return self._local.wrap(array, read_only=True)
        if isinstance(array, np.ndarray):
            array = array.view()
            array.flags.writeable = False
            return array
        return _OnDevice(self._backend, array)

    def _outputs(self, call: _Prepared) -> list[Any]:
        handles: list[Any] = []
        adding = [number for number, req in enumerate(call.context.req) if req == OpReq.ADD]
        for number, (array, spec) in enumerate(zip(call.outputs, call.context.call.outputs, strict=True)):
            target = self._backend.zeros(spec.shape, spec.dtype) if array is None else array
            if not self._is_numpy:
                handles.append(self._local.wrap(target))
            elif isinstance(target, np.ndarray):
                handles.append(target)
            else:
                handles.append(np.zeros(spec.shape, spec.dtype))
                if array is not None:
                    call.after.append((array, handles[-1]))
                    target = handles[-1]
            if array is not None and number not in adding:
                call.marks[number] = target, mark_of(target)
        return handles


class _OnDevice:
    """An input on a device that a NumpyOp reads: copied to the host at each call."""

    __slots__ = ("_array", "_backend")

    def __init__(self, backend: Any, array: Array) -> None:
        self._backend = backend
        self._array = array

    def host(self) -> Any:
        host = self._backend.get(self._array)
        host.flags.writeable = False
        return host


def _host(value: Any) -> Any:
    return value.host() if type(value) is _OnDevice else value


def _names(req: Sequence[OpReq]) -> list[str]:
    return [_NAMES[request] for request in req]
