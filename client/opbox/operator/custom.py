"""CustomOp, CustomOpProp and register: operators written as Python classes, in MXNet's form.

class Softmax(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        y = np.exp(x - x.max(axis=1, keepdims=True))
        self.assign(out_data[0], req[0], mx.nd.array(y / y.sum(axis=1, keepdims=True)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        ...

@mx.operator.register("softmax")
class SoftmaxProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Softmax()

net = mx.sym.Custom(data, label, op_type="softmax")
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

__all__ = [
    "CustomOp",
    "CustomOpProp",
    "check_operator",
    "check_signature",
    "collecting",
    "get_all_registered_operators",
    "known_here",
    "prop_class",
    "register",
]


class CustomOp:
    """Base of an operator's computation; one instance lives as long as its executor, so it may keep state."""

    def forward(self, is_train: bool, req: Sequence[str], in_data: Any, out_data: Any, aux: Any) -> None:
        """Compute the outputs.

        Args:
            is_train: whether this run trains.
            req: one of "null", "write", "inplace", "add" for each output.
            in_data, out_data, aux: lists of NDArray: inputs, outputs to write, auxiliary states.
        """
        raise MXNetError(f"{type(self).__name__}: forward is not defined: write it in the class")

    def backward(self, req: Sequence[str], out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        """Compute the gradients of the inputs into `in_grad`, as `req` says for each."""
        raise MXNetError(f"{type(self).__name__}: backward is not defined: write it in the class")

    def assign(self, dst: Any, req: str, src: Any) -> None:
        """Write `src` into `dst` as `req` says."""
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] += src
        elif req != "null":
            raise MXNetError(f"assign: req: expected 'null', 'write', 'inplace' or 'add', got {req!r}")


class CustomOpProp:
    """Base of an operator's description: arguments, outputs, shapes, types.

    Args:
        need_top_grad: whether backward reads the gradient of the outputs (a loss does not).
    """

    need_top_grad_ = True  # also of a class whose __init__ does not call this one's

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the auxiliary states."""
        return []

    def infer_shape(self, in_shape: list[Any]) -> Any:
        """Shapes of (inputs, outputs, auxiliary states) from those of the inputs; two lists will do without states.

        A shape is a list: 0 is a dimension that is not known yet, and [] a shape of which nothing is. By default every
        output has the first input's shape.
        """
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any]) -> Any:
        """Types of (inputs, outputs, auxiliary states); None is not known yet. By default all are the first input's.

        An input whose type is known keeps it: labels may be integers.
        """
        first = in_type[0] if in_type else np.float32
        input_types = [first if dtype is None else dtype for dtype in in_type]
        return input_types, [first] * len(self.list_outputs()), [first] * len(self.list_auxiliary_states())

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Choose which of these arrays backward reads; the rest need not be kept."""
        deps = list(out_grad) if self.need_top_grad_ else []
        return deps + list(in_data) + list(out_data)

    def create_operator(self, ctx: Any, in_shapes: list[Any], in_dtypes: list[Any]) -> CustomOp:
        """The computation for these shapes and types (auxiliary states come last in both lists)."""
        return CustomOp()


_props: dict[str, type[CustomOpProp]] = {}
_collected = threading.local()

# What a method is called with, for a mistake to be told at register and not in the middle of a run. forward and
# backward get theirs by name.
POSITIONAL: Mapping[str, int] = {
    "list_arguments": 0,
    "list_outputs": 0,
    "list_auxiliary_states": 0,
    "infer_shape": 1,
    "infer_type": 1,
    "declare_backward_dependency": 3,
    "create_operator": 3,
}
NAMED: Mapping[str, tuple[str, ...]] = {
    "forward": ("is_train", "req", "in_data", "out_data", "aux"),
    "backward": ("req", "out_grad", "in_data", "out_data", "in_grad", "aux"),
}


def register(reg_name: str) -> Callable[[type[CustomOpProp]], type[CustomOpProp]]:
    """Class decorator: make a CustomOpProp known as `op_type=reg_name`; a later one of the same name replaces it.

    Raises:
        MXNetError: the class is not a CustomOpProp, or one of its methods, or of the CustomOp that its create_operator
            names, cannot be called as it will be.
    """
    if not isinstance(reg_name, str) or not reg_name:
        raise MXNetError(f"register: expected a name, got {reg_name!r}: write @mx.operator.register('name')")

    def attach(prop: type[CustomOpProp]) -> type[CustomOpProp]:
        if not (isinstance(prop, type) and issubclass(prop, CustomOpProp)):
            raise MXNetError(f"register({reg_name!r}): expected a subclass of mx.operator.CustomOpProp, got {prop!r}")
        for method in POSITIONAL:
            check_signature(prop, method, f"operator {reg_name!r}")
        for operator in _operators_of(prop):
            for method in NAMED:
                check_signature(operator, method, f"operator {reg_name!r}")
        getattr(_collected, "into", _props)[reg_name] = prop
        return prop

    return attach


@contextlib.contextmanager
def collecting(into: dict[str, type[CustomOpProp]]) -> Iterator[None]:
    """Register operators of this thread in `into`, so that each session has its own source's."""
    before = getattr(_collected, "into", None)
    _collected.into = into
    try:
        yield
    finally:
        if before is None:
            del _collected.into
        else:
            _collected.into = before


def known_here(props: Mapping[str, type[CustomOpProp]]) -> None:
    """Make classes that were collected known to the whole program, as if they had been registered outside."""
    _props.update(props)


def _operators_of(prop: type[CustomOpProp]) -> Iterator[type[CustomOp]]:
    """The CustomOps that create_operator names, as far as they are defined already."""
    code = getattr(prop.create_operator, "__code__", None)
    known = getattr(prop.create_operator, "__globals__", {})
    for name in code.co_names if code is not None else ():
        value = known.get(name)
        if isinstance(value, type) and issubclass(value, CustomOp):
            yield value


def check_signature(cls: type, method: str, subject: str, named: Mapping[str, tuple[str, ...]] = NAMED) -> None:
    """MXNetError unless `cls.method` can be called as it will be."""
    function = getattr(cls, method)
    signature = inspect.signature(function)
    first = () if isinstance(inspect.getattr_static(cls, method), staticmethod | classmethod) else (None,)
    try:
        if method in named:
            signature.bind(*first, **dict.fromkeys(named[method]))
        else:
            signature.bind(*first, *range(POSITIONAL[method]))
    except TypeError:
        wanted = ", ".join(named[method]) if method in named else f"{POSITIONAL[method]} arguments"
        raise MXNetError(
            f"{subject}: {cls.__name__}.{method}: expected to be called with {wanted}, but it is defined as "
            f"{method}{signature}"
        ) from None


def check_operator(operator: Any, subject: str) -> None:
    """MXNetError unless `operator` is a CustomOp whose forward and backward take what they will be given."""
    if not isinstance(operator, CustomOp):
        raise MXNetError(
            f"{subject}: create_operator: expected a CustomOp to be returned, got {type(operator).__name__}"
        )
    for method in NAMED:
        check_signature(type(operator), method, subject)


def prop_class(op_type: str) -> type[CustomOpProp]:
    """The registered CustomOpProp; MXNetError lists what is registered."""
    props: dict[str, type[CustomOpProp]] = {**_props, **getattr(_collected, "into", {})}
    try:
        return props[op_type]
    except KeyError:
        known = ", ".join(sorted(props)) or "none"
        raise MXNetError(
            f"Custom: op_type {op_type!r} is not registered (registered: {known}): decorate its CustomOpProp with "
            f"@mx.operator.register({op_type!r}), or load the symbol from a file with its -ops.json beside it"
        ) from None


def get_all_registered_operators() -> list[str]:
    """The op_types that are registered here."""
    return sorted({*_props, *getattr(_collected, "into", ())})
