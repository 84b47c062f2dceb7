"""What MXNet's programs ask `Module._exec_group` for: the executors of a module's devices, and their arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..io import DataDesc

if TYPE_CHECKING:
    from .module import Module

__all__ = ["DataParallelExecutorGroup"]


class DataParallelExecutorGroup:
    """The executors of a bound module, by the names that MXNet has for them; a view, made anew each time.

    Lists of arrays have a list for each name, with its array on each device.

    Args:
        module: a bound module.

    Example:
        >>> mod._exec_group.execs[0].grad_dict["fc1_weight"]
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._binding = binding = module._bound
        names = module._names
        self.symbol = module.symbol
        self.contexts = list(module._context)
        self.workload = list(module._work_loads)
        self.execs: list[Any] = [replica.current for replica in binding.replicas]
        self.slices = binding.slices
        self.batch_size = None if binding.slices is None else binding.slices[-1].stop
        self.for_training, self.inputs_need_grad = module.for_training, module.inputs_need_grad
        self.grad_req = dict(binding.executors.grad_req)
        self.arg_names, self.aux_names = list(names.arguments), list(names.auxiliary)
        self.param_names, self.state_names = list(names.parameters), list(names.states)
        self.fixed_param_names, self.output_names = list(names.fixed), list(names.outputs)
        self.num_outputs = len(names.outputs)
        self.data_shapes, self.label_shapes = binding.data, binding.labels
        self.data_names = [desc.name for desc in binding.data]
        self.label_names = None if binding.labels is None else [desc.name for desc in binding.labels]
        self.output_layouts = binding.output_axes

    @property
    def param_arrays(self) -> list[list[Any]]:
        """The parameters, in the order of `param_names`."""
        return self._arrays("arg_dict", self.param_names)

    @property
    def grad_arrays(self) -> list[list[Any]] | None:
        """The parameters' gradients; None without training."""
        return self._arrays("grad_dict", self.param_names) if self.for_training else None

    @property
    def aux_arrays(self) -> list[list[Any]]:
        """The auxiliary states."""
        return self._arrays("aux_dict", self.aux_names)

    @property
    def state_arrays(self) -> list[list[Any]]:
        """The states between batches."""
        return self._arrays("arg_dict", self.state_names)

    @property
    def input_grad_arrays(self) -> list[list[Any]] | None:
        """The gradients of the data; None unless `bind` was asked for them."""
        return self._arrays("grad_dict", self.data_names) if self.inputs_need_grad else None

    @property
    def data_arrays(self) -> list[list[tuple[slice, Any]]]:
        """The data: for each name a device's slice of the batch with its array."""
        return self._sliced(self.data_shapes)

    @property
    def label_arrays(self) -> list[list[tuple[slice, Any]]] | None:
        """The labels, as the data; None without any."""
        return None if self.label_shapes is None else self._sliced(self.label_shapes)

    def _arrays(self, table: str, names: list[str]) -> list[list[Any]]:
        return [[getattr(executor, table)[name] for executor in self.execs] for name in names]

    def _sliced(self, descs: list[DataDesc]) -> list[list[tuple[slice, Any]]]:
        slices = self.slices or [slice(number, number + 1) for number in range(len(self.execs))]
        return [
            [(part, executor.arg_dict[desc.name]) for part, executor in zip(slices, self.execs, strict=True)]
            for desc in descs
            if desc.name in self.arg_names
        ]

    def install_monitor(self, mon: Any) -> None:
        """Attach a monitor to all executors."""
        self._module.install_monitor(mon)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """As of `Module`."""
        self._module.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        """As of `Module`."""
        self._module.backward(out_grads)

    def get_outputs(self, merge_multi_context: bool = True, begin: int = 0, end: int | None = None) -> list[Any]:
        """As of `Module`: those from `begin` to before `end`."""
        return self._module.get_outputs(merge_multi_context)[begin:end]

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """As of `Module`."""
        return self._module.get_input_grads(merge_multi_context)

    def get_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the outputs, of whole batches."""
        return self._module.output_shapes

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """As of `Module`."""
        self._module.update_metric(eval_metric, labels, pre_sliced)

    def set_params(self, arg_params: Any, aux_params: Any, allow_extra: bool = False) -> None:
        """Write parameters and auxiliary states, by name, to all executors."""
        for executor in self.execs:
            executor.copy_params_from(arg_params, aux_params, allow_extra_params=allow_extra)
        self._binding.executors.writes.value += 1

    def get_params(self, arg_params: Any, aux_params: Any) -> None:
        """Write the devices' parameters and auxiliary states to arrays by name."""
        for own, targets in zip(self._module.get_params(), (arg_params, aux_params), strict=True):
            for name, values in own.items():
                values.copyto(targets[name])
