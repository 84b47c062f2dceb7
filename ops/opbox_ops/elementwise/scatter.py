"""_scatter_elemwise_div, _scatter_plus_scalar, _scatter_minus_scalar, _copyto: operators under a second name.

In MXNet the _scatter_ forms leave out what a sparse array does not hold; every array here is dense, so that they
compute what the plain ones do. They keep their own names in files. All inputs and out have one shape.
"""

from __future__ import annotations

from ..registry import get, register
from . import binary, identity, scalar

__all__: list[str] = []

TWINS = (
    ("_scatter_elemwise_div", "elemwise_div", binary),
    ("_scatter_plus_scalar", "_plus_scalar", scalar),
    ("_scatter_minus_scalar", "_minus_scalar", scalar),
    ("_copyto", "_copy", identity),
)
"""Name, the operator that computes the same, and the module that registers it."""

for _name, _of, _module in TWINS:
    _plain = get(_of)
    _op = register(_name, _plain.params, inputs=_plain.inputs, doc=_plain.doc)
    for _key in _plain.attr_keys():
        _op.set_attr(_key, _plain.get_attr(_key))
