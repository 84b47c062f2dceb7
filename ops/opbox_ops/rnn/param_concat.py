"""_rnn_param_concat: vectors joined into the packed parameters of RNN.

arg0, arg1, … are arrays whose shapes agree in all dimensions but `dim`; out is as long along it as they are together.
The size of the one input that is not known, a first layer's weights, follows from out's. Each input's gradient is its
part of gout.
"""

from __future__ import annotations

from ..registry import Variadic, register
from ..shape import joined_rows  # noqa: F401  its computes are copied too
from ..shape.concat import ConcatParams
from ..shape.concat import concat as joined

op = register("_rnn_param_concat", ConcatParams, inputs=Variadic())
for key in joined.attr_keys():
    op.set_attr(key, joined.get_attr(key))
