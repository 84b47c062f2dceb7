"""OnnxGraph: the nodes and constants of an ONNX model under construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

__all__ = ["OnnxGraph"]


class OnnxGraph:
    """Collects nodes and initializers; every value has a name of its own.

    Attributes:
        nodes: in the order of execution.
        initializers: constants and parameters.
    """

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def unique(self, wanted: str) -> str:
        """The name, or one like it that nothing has yet."""
        name, number = wanted, 0
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def parameter(self, name: str, values: np.ndarray[Any, Any]) -> str:
        """A constant under a name of the network's."""
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name))
        return name

    def constant(self, values: Any, dtype: Any, hint: str) -> str:
        """A constant; equal ones are one."""
        array = np.asarray(values, dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.parameter(self.unique(f"{hint}_const"), array)
        return self._constants[key]

    def node(self, op_type: str, inputs: Sequence[str], outputs: int, hint: str, attrs: dict[str, Any]) -> list[str]:
        """A node, by the names of what it makes."""
        from onnx import helper

        names = [self.unique(f"{hint}_{op_type.lower()}") for _ in range(outputs)]
        attrs = {key: value for key, value in attrs.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=names[0], **attrs))
        return names

    def rename(self, old: str, new: str, since: int) -> bool:
        """Rename what one of the nodes from number `since` on makes; False when none of them makes it."""
        for node in self.nodes[since:]:
            if old in node.output:
                break
        else:
            return False
        for node in self.nodes[since:]:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == old:
                        names[i] = new
            if node.name == old:
                node.name = new
        return True
