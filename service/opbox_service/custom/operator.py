"""Custom, _NumpyOp and _NDArrayOp: operators whose rules ask the user's own description, and whose compute calls it.

A node's parameters are parsed where its session's definitions are active; from there on they carry the description, so
that nothing below knows of sessions. Each parse makes a description of its own: a Prop may keep what it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict, PrivateAttr

from opbox_ops.compute import Arrays, OpContext, Outputs
from opbox_ops.gradient import backward_node
from opbox_ops.infer import ShapeList, TypeList
from opbox_ops.node import Entry, Node
from opbox_ops.params import Field, Params
from opbox_ops.registry import Op, register
from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import is_hidden

from .definitions import BASES, active
from .description import Description, describe
from .instance import OperatorInstance

__all__ = ["CODE", "CustomParams"]

CODE = "__code__"
"""The attribute that names a node's code by hash."""


class CustomParams(Params):
    """A user's operator and its own parameters, which are strings."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    op_type: str = Field(description="The name that the operator was registered by; its class for _NumpyOp.")
    _described: Description | None = PrivateAttr(None)

    # Never shared: what one call's description has noted is not another's.
    def __hash__(self) -> int:
        raise TypeError("the parameters of a user's operator are not hashable")

    @classmethod
    def parse(cls, op: str, attrs: Mapping[str, Any]) -> Self:
        """See Params.parse; asks the definitions of the session that is active in this thread.

        Raises:
            ParamError: op_type is missing, or the operator takes no such parameters.
            NotFoundError: there is no definition.
            UserCodeError: the user's code failed.
        """
        params = super().parse(op, attrs)
        definitions = active()
        definition = definitions.find(op, params.op_type, attrs.get(CODE))
        own = {key: str(value) for key, value in attrs.items() if key != "op_type" and not is_hidden(key)}
        with definitions.local.inside():
            params._described = describe(definition, own)
        return params

    @property
    def described(self) -> Description:
        """The operator's names, shapes and types, as its own code describes them."""
        assert self._described is not None
        return self._described


def _inputs(p: CustomParams) -> list[str]:
    return [*p.described.arguments, *p.described.auxiliary_states]


def _outputs(p: CustomParams) -> list[str]:
    return p.described.outputs


def _states(p: CustomParams) -> list[int]:
    first = len(p.described.arguments)
    return list(range(first, first + len(p.described.auxiliary_states)))


def _infer_shape(p: CustomParams, ins: ShapeList, outs: ShapeList) -> None:
    with active().local.inside():
        p.described.infer_shape(ins, outs)


def _infer_type(p: CustomParams, ins: TypeList, outs: TypeList) -> None:
    with active().local.inside():
        p.described.infer_type(ins, outs)


def _create(p: CustomParams, ctx: OpContext, shapes: list[Any], dtypes: list[Any]) -> OperatorInstance:
    return OperatorInstance(p.described, active().local, ctx, shapes, dtypes)


def _forward(p: CustomParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.state.forward(ctx, inputs, outputs)


def _backward(p: CustomParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.state.backward(ctx, inputs, outputs)


def _gradient(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    assert node.op is not None
    params: Any = node.params
    description: Description = params.described
    first = len(description.arguments)
    every = [*ograds, *node.inputs[:first], *node.entries()]
    try:
        reads = description.backward_reads()
    except MXNetError as error:
        raise error.at(node.name, node.op.name, node.source) from error
    return backward_node(f"_backward_{node.op.name}", node, [*(every[i] for i in reads), *node.inputs[first:]])


_THEIRS = "what a user's code allocates is its own affair"


def _register(name: str, doc: str) -> Op:
    op = register(name, CustomParams, inputs=_inputs, outputs=_outputs, doc=doc)
    op.set_attr("FMutateInputs", _states)
    op.infer_shape(_infer_shape)
    op.infer_type(_infer_type)
    op.gradient(_gradient)
    # A CustomOp is told how to write, and adds itself; the older forms are only ever told to write.
    op.compute(accumulates=name == "Custom", allocates=_THEIRS)(_forward)
    op.set_attr("FCreateOpState", _create)
    backward = register(f"_backward_{name}", CustomParams, inputs=(), doc=f"Gradient; see {name}.")
    backward.set_attr("TIsBackward", True)
    backward.compute(accumulates=name == "Custom", allocates=_THEIRS)(_backward)
    for registered in (op, backward):
        # Its parameters are a session's: no catalogue lists it, and no cache keeps a graph with it.
        registered.set_attr("TUserCode", True)
    return op


_register("Custom", "An operator that a user registered with mx.operator.register.")
_register("_NumpyOp", "An operator on numpy arrays in MXNet 0.9's form.")
_register("_NDArrayOp", "An operator on NDArrays in MXNet 0.9's form.")
assert set(BASES) == {"Custom", "_NumpyOp", "_NDArrayOp"}
