"""BoundModule: a symbol bound on one device, that can be fed and run; of parameters it knows only the names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from .. import ndarray as nd
from ..context import Context, current_context
from ..io import DataDesc
from ..ndarray import NDArray
from .base_module import BaseModule
from .executors import Executors
from .feed import label_value, load_batch
from .names import check_input_names, parse_data_desc

__all__ = ["BoundModule"]


class BoundModule(BaseModule):
    """The half of `Module` that binds and runs; see there for the arguments."""

    def __init__(
        self,
        symbol: Any,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Any = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(logger)
        self._context = _one_context(context, logger)
        self._symbol = symbol
        self._data_names = list(data_names or [])
        self._label_names = list(label_names or [])
        self._state_names = list(state_names or [])
        self._fixed_param_names = list(fixed_param_names or [])
        check_input_names(symbol, self._data_names, "data", True)
        check_input_names(symbol, self._label_names, "label", False)
        check_input_names(symbol, self._state_names, "state", True)
        check_input_names(symbol, self._fixed_param_names, "fixed_param", True)
        self._input_names = [*self._data_names, *self._label_names, *self._state_names]
        self._param_names = [name for name in symbol.list_arguments() if name not in self._input_names]
        self._aux_names = symbol.list_auxiliary_states()
        self._output_names = symbol.list_outputs()
        self._executors: Executors | None = None
        self._data_shapes: list[DataDesc] = []
        self._label_shapes: list[DataDesc] | None = None

    # ---- what it is

    @property
    def data_names(self) -> list[str]:
        return self._data_names

    @property
    def label_names(self) -> list[str]:
        """Names of the label inputs."""
        return self._label_names

    @property
    def output_names(self) -> list[str]:
        return list(self._output_names)

    @property
    def data_shapes(self) -> list[DataDesc]:
        self._check_ready(params=False)
        return self._data_shapes

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        self._check_ready(params=False)
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, out.shape) for name, out in zip(self._output_names, self._exec.outputs, strict=True)]

    @property
    def _exec(self) -> Any:
        return self._bound.current

    @property
    def _bound(self) -> Executors:
        self._check_ready(params=False)
        assert self._executors is not None
        return self._executors

    # ---- binding

    def _bind_executors(
        self,
        data_shapes: Any,
        label_shapes: Any,
        for_training: bool,
        inputs_need_grad: bool,
        shared: BoundModule | None,
        grad_req: Any,
    ) -> None:
        """Make the executor for the shapes; of `shared`, its arrays are used."""
        if inputs_need_grad and not for_training:
            raise AssertionError("inputs_need_grad: there are no gradients without for_training")
        self._data_shapes, self._label_shapes = parse_data_desc(
            self._data_names, self._label_names, data_shapes, label_shapes
        )
        self.for_training = for_training
        self.inputs_need_grad = inputs_need_grad
        requests = self._requests(grad_req if for_training else "null")
        arrays = shared._bound if shared is not None else None
        self._executors = Executors(self._symbol, self._context, self._input_names, requests, arrays)
        self._executors.select([*self._data_shapes, *(self._label_shapes or [])])
        self.binded = True

    def _requests(self, grad_req: Any) -> dict[str, str]:
        """What is asked of the gradient of each argument."""
        arguments = self._symbol.list_arguments()
        if isinstance(grad_req, (list, tuple)):
            if len(grad_req) != len(arguments):
                raise AssertionError(
                    f"grad_req: expected {len(arguments)} entries, one an argument, got {len(grad_req)}"
                )
            return dict(zip(arguments, grad_req, strict=True))
        if not isinstance(grad_req, (str, Mapping)):
            raise ValueError(f"grad_req: expected a string, a list or a dict, got {type(grad_req).__name__}")
        general = grad_req if isinstance(grad_req, str) else "write"
        requests = dict.fromkeys(arguments, "null")
        for name in self._param_names:
            requests[name] = "null" if name in self._fixed_param_names else general
        if self.inputs_need_grad:
            requests |= dict.fromkeys(self._data_names, general)
        return requests if isinstance(grad_req, str) else requests | dict(grad_req)

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Use other input shapes from here on; the parameters stay."""
        bound = self._bound
        self._data_shapes, self._label_shapes = parse_data_desc(
            self._data_names, self._label_names, data_shapes, label_shapes
        )
        bound.select([*self._data_shapes, *(self._label_shapes or [])])

    # ---- running

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch; of another size than bound, the module is reshaped.

        Args:
            data_batch: `data` and perhaps `label`: lists of arrays of any kind.
            is_train: the mode; None for that of `bind`.
        """
        self._check_ready()
        # Whatever is recorded belongs to the step before: it leaves now, and this step is a request of its own.
        self._flush()
        shapes = tuple(tuple(one.shape) for one in data_batch.data)
        if shapes != tuple(tuple(desc.shape) for desc in self._data_shapes):
            self._reshape_to(data_batch, shapes)
        executor = self._exec
        load_batch(executor.arg_dict, self._data_shapes, data_batch.data)
        labels = getattr(data_batch, "label", None)
        if self._label_shapes and labels:
            load_batch(executor.arg_dict, self._label_shapes, labels)
        executor.forward(is_train=self.for_training if is_train is None else is_train)

    def _reshape_to(self, batch: Any, shapes: Sequence[tuple[int, ...]]) -> None:
        data = getattr(batch, "provide_data", None) or [
            DataDesc(desc.name, shape, desc.dtype, desc.layout)
            for desc, shape in zip(self._data_shapes, shapes, strict=True)
        ]
        label = getattr(batch, "provide_label", None)
        if not label and getattr(batch, "label", None) and self._label_shapes:
            label = [
                DataDesc(desc.name, tuple(one.shape), desc.dtype, desc.layout)
                for desc, one in zip(self._label_shapes, batch.label, strict=True)
            ]
        self.reshape(data, label or None)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients that `bind` asked for.

        Args:
            out_grads: gradients of the outputs, one an output, for networks that do not end in a loss.
        """
        self._check_ready()
        if not self.for_training:
            raise AssertionError("backward: the module was bound without gradients: bind it with for_training=True")
        if out_grads is None:
            self._exec.backward()
        else:
            given = out_grads if isinstance(out_grads, (list, tuple)) else [out_grads]
            self._exec.backward([one if isinstance(one, NDArray) else nd.array(one) for one in given])

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The outputs of the batch run last; each belongs to the executor, and changes with the next batch."""
        self._check_ready()
        return list(self._exec.outputs)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The gradients of the data of the batch run last, in the order of `data_shapes`."""
        self._check_ready()
        if not self.inputs_need_grad:
            raise AssertionError("re-bind with inputs_need_grad=True to have gradients of the inputs")
        return [self._exec.grad_dict[desc.name] for desc in self.data_shapes]

    def get_states(self, merge_multi_context: bool = True) -> list[NDArray]:
        """The arrays of `state_names`."""
        self._check_ready()
        return [self._exec.arg_dict[name] for name in self._state_names]

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the arrays of `state_names`: each to one of `states`, or all to `value`."""
        self._check_ready()
        if (states is None) == (value is None):
            raise AssertionError("set_states: expected either states or value")
        for position, array in enumerate(self.get_states()):
            array[:] = value if states is None else states[position]

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Take the outputs of the batch run last into a metric, without waiting for them.

        Args:
            eval_metric: an `EvalMetric`.
            labels: the batch's labels.
            pre_sliced: concerns several devices; must be False.
        """
        if pre_sliced:
            raise AssertionError("pre_sliced: there is one device, and no slices")
        names = [desc.name for desc in self._label_shapes or ()]
        told = {name: label_value(one) for name, one in zip(names, labels or (), strict=False)}
        wanted = eval_metric.output_names if eval_metric.output_names is not None else self._output_names
        outputs = zip(self._output_names, self._exec.outputs, strict=True)
        found = {name: out._fetch_async() for name, out in outputs if name in wanted}
        eval_metric.update_later(told, found)

    def install_monitor(self, mon: Any) -> None:
        """Let a `Monitor` see the executor's arrays."""
        mon.install(self._exec)

    def _flush(self) -> None:
        self._context.session.flush()


def _one_context(context: Any, logger: Any) -> Context:
    if isinstance(context, (list, tuple)):
        if len(context) > 1:
            logger.warning("context: %d devices given; a module runs on one, and uses %s", len(context), context[0])
        context = context[0]
    return context if context is not None else current_context()
