"""Calls of an operator's function that recur skip the sorting of arguments: those with tensors alone by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _schema
from .array import NDArray
from .invoke_form import InvokeForm, form_of

__all__ = ["with_shortcut"]

MAX_KEYS = 256
"""Maximum number of call forms to remember per function."""
_KINDS = frozenset({bool, int, float, str, type(None)})
_OWN = frozenset({"name", "attr", "ctx", "dtype"})
"""Arguments that are not parameters, or that need conversion first."""


def with_shortcut(
    op: _schema.Operator,
    function: Callable[..., Any],
    run: Callable[[InvokeForm, Sequence[NDArray], Any], Any],
) -> Callable[..., Any]:
    """`function`, which from the third call on knows a call again by the number of its tensors and its parameters.

    Args:
        op: the operator.
        function: sorts its arguments and runs `op`.
        run: runs a form on inputs, into its third argument unless that is None.
    """
    if op.result_shape == "given":  # a setting of the program decides what the shape means
        return function
    forms: dict[Any, InvokeForm] = {}
    once: set[Any] = set()

    def call(*args: Any, **kwargs: Any) -> Any:
        for tensor in args:
            if type(tensor) is not NDArray:
                return function(*args, **kwargs)
        if not args:
            return function(**kwargs)
        out = kwargs.pop("out", None) if kwargs else None
        # Types too: 1, 1.0 and True are one key, and three texts.
        key = (len(args), *kwargs.items(), *map(type, kwargs.values())) if kwargs else len(args)
        try:
            form = forms.get(key)
        except TypeError:  # a list among the parameters
            return function(*args, out=out, **kwargs)
        if form is not None:
            return run(form, args, out)
        result = function(*args, out=out, **kwargs)
        if not _KINDS.issuperset(map(type, kwargs.values())):
            return result
        # What comes once, as a learning rate that changes, is not worth the form.
        if key not in once:
            _evict(once)
            once.add(key)
        elif (form := _form(op, args, kwargs)) is not None:
            _evict(forms)
            forms[key] = form
        return result

    return call


def _form(op: _schema.Operator, args: Sequence[NDArray], params: Mapping[str, Any]) -> InvokeForm | None:
    """The form of a call that has succeeded; None where more than tensors and parameters decides."""
    for key, value in params.items():
        # 0.0 and -0.0 are one key, and two texts.
        if key in _OWN or key in op.tensors or (value == 0 and type(value) is float):
            return None
    if op.count is not None:
        attrs, inputs = op.arranged(args, {}, params)
    elif len(args) > len(op.tensors):
        return None
    else:
        attrs, inputs = op.arranged((), dict(zip(op.tensors, args, strict=False)), params)
    return form_of(op, attrs) if list(map(id, inputs)) == list(map(id, args)) else None


def _evict(remembered: dict[Any, Any] | set[Any]) -> None:
    if len(remembered) >= MAX_KEYS:
        remembered.clear()
