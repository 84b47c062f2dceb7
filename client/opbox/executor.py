"""Executor: a symbol bound to arrays on a device, run forward and backward.

executor = net.simple_bind(mx.cpu(), data=(32, 20))
executor.forward(is_train=True, data=x)
executor.backward()
executor.grad_dict["fc1_weight"]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from opbox_protocol.commands import Backward, Bind, Forward
from opbox_protocol.errors import MXNetError, ValueShapeError
from opbox_protocol.signal_shield import whole

from .context import Context
from .freed import Freed
from .html import shape_text, table
from .known_graphs import Document
from .monitoring import Callback, MonitorCallback
from .ndarray import NDArray, zeros
from .operator.sending import graph_for

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["Executor"]

T = TypeVar("T")


class Executor(Freed):
    """A symbol bound to arrays; `Symbol.bind` and `Symbol.simple_bind` make it.

    Attributes:
        arg_arrays, grad_arrays, aux_arrays: in the order of the symbol's lists; None where there is no gradient.
        outputs: the arrays that forward writes.

    Args:
        symbol, ctx: the graph and the device.
        args, grads, grad_req, aux: the arrays, in the order of the symbol's lists; requests by argument name.
        document: the graph as it is sent to the session, for who has it already.
        wire_names: the arguments' names in `document`, where those of the symbol are not all different; then the
            requests are by these names.
    """

    def __init__(
        self,
        symbol: Symbol,
        ctx: Context,
        args: Sequence[NDArray],
        grads: Sequence[NDArray | None],
        grad_req: Mapping[str, str],
        aux: Sequence[NDArray],
        document: Document | None = None,
        wire_names: Sequence[str] | None = None,
    ) -> None:
        self._symbol = symbol
        self._ctx = ctx
        self._session = ctx.session
        self._names = (symbol.list_arguments(), symbol.list_auxiliary_states(), symbol.list_outputs())
        wire_names = self._names[0] if wire_names is None else wire_names
        self.arg_arrays = list(args)
        self.grad_arrays = list(grads)
        self.aux_arrays = list(aux)
        self._grad_req = dict(grad_req)
        self._id = self._session.new_id()
        self.__del__ = partial(self._session.free, self._id)
        self.outputs = [NDArray(self._session, self._session.new_id()) for _ in self._names[2]]
        self._monitor: MonitorCallback | None = None
        command: Bind = {
            "do": "bind",
            "id": self._id,
            "graph": self._session.graphs.reference(document or graph_for(self._session, symbol)),
            "args": {name: array._id for name, array in zip(wire_names, self.arg_arrays, strict=True)},
            "grads": {n: a._id for n, a in zip(wire_names, self.grad_arrays, strict=True) if a is not None},
            "grad_req": self._grad_req,
            "aux": {name: array._id for name, array in zip(self._names[1], self.aux_arrays, strict=True)},
            "outputs": [array._id for array in self.outputs],
        }
        if not _eliminates_common_expr():
            command["eliminate_common_expr"] = False
        self._session.record(command)

    def _repr_html_(self) -> str:
        """The arrays for a notebook, without their values."""
        rows = [
            (name, shape_text(array.shape), np.dtype(array.dtype).name, f"argument, {self._grad_req.get(name, 'null')}")
            for name, array in zip(self._names[0], self.arg_arrays, strict=True)
        ]
        rows += [(n, shape_text(x.shape), np.dtype(x.dtype).name, "auxiliary state") for n, x in self.aux_dict.items()]
        rows += [(n, shape_text(x._shape), "", "output") for n, x in zip(self._names[2], self.outputs, strict=True)]
        return table(
            f"Executor of {self._symbol.name or 'a group'} on {self._ctx}", ("array", "shape", "type", ""), rows
        )

    # -- running ----------------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        """Compute the outputs.

        Args:
            is_train: the mode: dropout drops, batch norm uses the batch; needed before `backward`.
            kwargs: arrays (of either kind) to write to arguments first.

        Raises:
            TypeError: an argument that the symbol does not have.
            ValueShapeError: another shape than bound; it is a ValueError, too.
        """
        if kwargs or self._monitor is not None:
            self._forward_whole(is_train, kwargs)
        else:
            self._session.record({"do": "forward", "executor": self._id, "is_train": bool(is_train)})
        return self.outputs

    @whole
    def _forward_whole(self, is_train: bool, values: Mapping[str, Any]) -> None:
        """Record more than one command: arguments' values come before the run, and copies that a monitor is shown."""
        arguments = self.arg_dict
        for name, array in values.items():
            if name not in arguments:
                raise TypeError(f"forward: unknown argument {name!r}: expected one of {', '.join(arguments)}")
            if not hasattr(array, "shape"):
                raise ValueError(f"argument {name!r}: expected an NDArray or a numpy array, got {type(array).__name__}")
            if arguments[name].shape != tuple(array.shape):
                raise ValueShapeError(
                    f"argument {name!r}: expected shape {arguments[name].shape}, as bound, got {tuple(array.shape)}"
                )
            arguments[name][:] = array
        watch = {} if self._monitor is None else self._monitor.begin(self._session, self._optimized, self._description)
        command: Forward = {"do": "forward", "executor": self._id, "is_train": bool(is_train)}
        if watch:
            command["watch"] = {name: array._id for name, array in watch.items()}
        self._session.record(command)
        if self._monitor is not None:
            self._monitor.show({**watch, **self.arg_dict, **self.aux_dict})

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Compute the gradients, into the bound arrays as `grad_req` says.

        Args:
            out_grads: gradients of the outputs (an array, a list, or by output name), for outputs that are no loss.
                Those of losses are not read, nor are more than there are outputs.
            is_train: the mode, best that of `forward`: without it batch norm's statistics count as constants.
        """
        if out_grads is None:
            grads: list[Any] = []
        elif isinstance(out_grads, NDArray):
            grads = [out_grads]
        elif isinstance(out_grads, Mapping):
            grads = [out_grads[name] for name in self._names[2]]
        else:
            grads = list(out_grads)
        grads = grads[: len(self._names[2])]
        for grad in grads:
            if grad is not None and not isinstance(grad, NDArray):
                raise TypeError(f"out_grads: expected NDArrays, got {type(grad).__name__}")
        # Arrays of another context are of another session, where their numbers mean others.
        grads = [
            grad if grad is None or grad._session == self._session else grad.as_in_context(self.outputs[0].context)
            for grad in grads
        ]
        heads = [None if grad is None else grad._id for grad in grads]
        command: Backward = {"do": "backward", "executor": self._id, "head_grads": heads}
        if not is_train:
            command["is_train"] = False
        watch = [] if self._monitor is None else self._monitor.begin_backward(self._session, self._description)
        if any(array is not None for array in watch):
            command["watch"] = [None if array is None else array._id for array in watch]
        self._session.record(command)
        if self._monitor is not None:
            self._monitor.show_backward(self._description, watch, grads, {**self.arg_dict, **self.aux_dict})

    # -- arrays by name ---------------------------------------------------------------------------------------

    # One dict an executor, as in MXNet: what a program puts in is there when it looks again.

    @cached_property
    def arg_dict(self) -> dict[str, NDArray]:
        """The arguments' arrays by name; ValueError where two arguments have one name."""
        return _by_name("arguments", self._names[0], self.arg_arrays)

    @cached_property
    def grad_dict(self) -> dict[str, NDArray | None]:
        """The gradients' arrays by argument name, None where there is none; ValueError as of `arg_dict`."""
        return _by_name("arguments", self._names[0], self.grad_arrays)

    @cached_property
    def aux_dict(self) -> dict[str, NDArray]:
        """The auxiliary states' arrays by name."""
        return _by_name("auxiliary states", self._names[1], self.aux_arrays)

    @cached_property
    def output_dict(self) -> dict[str, NDArray]:
        """The outputs' arrays by name; ValueError where two outputs have one name."""
        return _by_name("outputs", self._names[2], self.outputs)

    def copy_params_from(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Write parameters and auxiliary states, cast to the bound types.

        Raises:
            ValueError: a name that the symbol does not have, unless `allow_extra_params`.
            ValueShapeError: a value of another shape than bound.
        """
        for values, bound, kind in (
            (arg_params, self.arg_dict, "argument"),
            (aux_params or {}, self.aux_dict, "auxiliary state"),
        ):
            for name, value in values.items():
                if name in bound:
                    bound[name]._fill(value, f"copy_params_from: {kind} {name!r}")
                elif not allow_extra_params:
                    raise ValueError(
                        f"copy_params_from: {name!r} is none of the {kind}s: allow_extra_params=True leaves it out"
                    )

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any) -> Executor:
        """An executor for other input shapes, sharing what keeps its shape with this one.

        Args:
            partial_shaping: arguments that are not named may change their shape too.
            allow_up_sizing: arrays may grow.
            kwargs: the new shapes by argument name.

        Raises:
            MXNetError: an array would change its shape, or grow, without leave.
        """
        unknown = [name for name in kwargs if name not in self._names[0]]
        if unknown or not kwargs:
            listed = ", ".join(self._names[0])
            raise MXNetError(f"reshape: expected new shapes of some of {listed}, got {', '.join(unknown) or 'none'}")
        arg_shapes, _, aux_shapes = self._symbol.infer_shape(**{n: tuple(shape) for n, shape in kwargs.items()})
        if arg_shapes is None or aux_shapes is None:
            raise MXNetError(
                f"reshape: expected shapes that decide those of all arguments, got only those of {', '.join(kwargs)}: "
                "give the inputs' too"
            )
        args, grads = [], []
        for name, shape, array, grad in zip(self._names[0], arg_shapes, self.arg_arrays, self.grad_arrays, strict=True):
            args.append(_resized(name, array, shape, name in kwargs or partial_shaping, allow_up_sizing))
            grads.append(None if grad is None else _resized(name, grad, shape, True, True))
        aux = [
            _resized(name, array, shape, partial_shaping, allow_up_sizing)
            for name, shape, array in zip(self._names[1], aux_shapes, self.aux_arrays, strict=True)
        ]
        executor = Executor(self._symbol, self._ctx, args, grads, self._grad_req, aux)
        executor._monitor = self._monitor
        return executor

    # -- watching ---------------------------------------------------------------------------------------------

    def set_monitor_callback(
        self, callback: Callback | None, monitor_all: bool = False, wanted: Callable[[str], bool] | None = None
    ) -> None:
        """Call `callback(name, array)` after every forward and backward for each operator's outputs, in their order.

        The engine copies each array that is shown, so that a forward without a callback, or one of which nothing is
        wanted, costs nothing more.

        Args:
            callback: called with names such as "fc1_output", "fc1_backward_output0" and NDArrays; None ends it. An
                output of a backward operator that no gradient needs is shown as zeros.
            monitor_all: each operator's inputs too, before its outputs: "fc1_data", "fc1_backward_input0", a variable
                by its own name first. Values of a forward that was not monitored are not shown as inputs of backward.
            wanted: by an array's name, whether `callback` is to be called with it in the run to come; all when None.
        """
        self._monitor = None if callback is None else MonitorCallback(callback, monitor_all, wanted)

    def debug_str(self) -> str:
        """The graph as text, and the whole MiB that the plan takes, in the two lines that end MXNet's.

        Programs that plan memory read the number: `executor.debug_str().split("\\n")[-3].split()[1]`.
        """
        description = self._description
        allocated = description.get("arena_bytes", 0) + description.get("output_bytes", 0)
        return f"{self.get_optimized_symbol().debug_str()}Total {allocated >> 20} MB allocated\n{_TEMPSPACE_LINE}\n"

    def get_optimized_symbol(self) -> Symbol:
        """The symbol with its common expressions merged; the plan's own changes to it stay on the engine."""
        return self._optimized

    @cached_property
    def _optimized(self) -> Symbol:
        description = self._description
        if "merged" not in description:
            return self._symbol
        return self._symbol._merged(dict(description["merged"]), description["heads"])

    @cached_property
    def _description(self) -> dict[str, Any]:
        """Return the engine's description of the executor; wait for its `bind`."""
        return self._session.describe(self._id, "describe_executor")


_TEMPSPACE_LINE = "Total 11 TempSpace resource requested"
"""MXNet's last line: the number is 11 whatever the network, and an engine has no such resources."""


def _eliminates_common_expr() -> bool:
    """Whether equal calls on the same inputs are to be computed once, by MXNet's `MXNET_ELIMINATE_COMMON_EXPR`.

    Raises:
        MXNetError: the variable has another value than 0, 1, true or false.
    """
    text = os.environ.get("MXNET_ELIMINATE_COMMON_EXPR", "")
    if text.lower() not in ("", "0", "1", "true", "false"):
        raise MXNetError(f"MXNET_ELIMINATE_COMMON_EXPR: expected 0, 1, true or false, got {text!r}")
    return text.lower() not in ("0", "false")


def _by_name(what: str, names: Sequence[str], arrays: Sequence[T]) -> dict[str, T]:
    """Arrays by name.

    Raises:
        ValueError: a name is there twice.
    """
    if len(set(names)) != len(names):
        raise ValueError(
            f"Duplicate names detected, {names}: expected {what} of different names: use the list of arrays"
        )
    return dict(zip(names, arrays, strict=True))


def _resized(name: str, array: NDArray, shape: Sequence[int], free: bool, grow: bool) -> NDArray:
    wanted = tuple(shape)
    if array.shape == wanted:
        return array
    if not free:
        raise MXNetError(
            f"{name}: expected shape {array.shape} as it was bound, got {wanted} by the new input shapes; pass "
            "partial_shaping=True to let it change"
        )
    size = int(np.prod(wanted))
    if size > array.size:
        if not grow:
            raise MXNetError(f"{name}: expected at most {array.size} elements, got {wanted}; pass allow_up_sizing=True")
        return zeros(wanted, array.context, array.dtype)
    return array.reshape((-1,))._slice(0, size).reshape(wanted) if wanted else array
