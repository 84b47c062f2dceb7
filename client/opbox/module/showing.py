"""HTML of a module for a notebook: inputs and outputs, progress, parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..html import shape_text, table

if TYPE_CHECKING:
    from .module import Module

__all__ = ["html"]


def html(module: Module) -> str:
    """The module as a table, without values; nothing of it is asked of the engine."""
    if not module.binded:
        rows = [(name, "?", "", "data") for name in module.data_names]
        rows += [(name, "?", "", "label") for name in module.label_names]
        rows += [(name, "?", "", "parameter") for name in module._names.parameters]
        rows += [(name, "?", "", "output") for name in module.output_names]
        return table(_caption(module, "not bound"), ("array", "shape", "type", ""), rows)
    arrays = module._exec.arg_dict
    rows = [(d.name, shape_text(d.shape), np.dtype(d.dtype).name, "data") for d in module.data_shapes]
    rows += [(d.name, shape_text(d.shape), np.dtype(d.dtype).name, "label") for d in module.label_shapes or ()]
    numbers = 0
    for name in module._names.parameters:
        array = arrays[name]
        numbers += array.size
        kind = "parameter, fixed" if name in module._names.fixed else "parameter"
        rows.append((name, shape_text(array.shape), np.dtype(array.dtype).name, kind))
    rows += [(name, "", "", "output") for name in module.output_names]
    state = f"{numbers:,} numbers" if module.params_initialized else f"{numbers:,} numbers, not initialized"
    if module.optimizer_initialized:
        state += f", {type(module._optimizer).__name__}"
    return table(_caption(module, f"bound on {module._exec._ctx}, {state}"), ("array", "shape", "type", ""), rows)


def _caption(module: Module, state: str) -> str:
    return f"{type(module).__name__} of {module.symbol.name or 'a group'}: {state}"
