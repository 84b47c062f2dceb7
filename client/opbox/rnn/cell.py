"""The base of recurrent cells: parameters, states, unrolling, and packing of gates' weights.

A cell is a function (input, states) -> (output, states) on symbols. Unrolling applies it `length` times, sharing the
parameters. Names of variables and nodes are MXNet's, so that checkpoints go both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opbox_protocol.errors import MXNetError

from .. import ndarray as nd
from .. import symbol
from ..base import value_text

__all__ = ["BaseRNNCell", "RNNParams", "normalize_sequence"]

Symbol = Any
States = list[Any]
StateInfo = list[dict[str, Any]]


def normalize_sequence(
    length: int | None, inputs: Any, layout: str, merge: bool | None, in_layout: str | None = None
) -> tuple[Any, int]:
    """A sequence as one symbol (`merge` True), as a list of steps (False), or as it is (None); and the time axis.

    Args:
        length: steps, where a symbol is to be split.
        inputs: a symbol with a time axis, or a list of symbols, one a step.
        layout: where the result has its T.
        in_layout: where `inputs` has its T, when not as in `layout`.
    """
    if inputs is None:
        raise AssertionError("unroll needs inputs: create the input variables outside and pass them")
    axis = layout.find("T")
    in_axis = in_layout.find("T") if in_layout is not None else axis
    if isinstance(inputs, symbol.Symbol):
        if merge is False:
            if length is None:
                raise AssertionError("length: expected the number of steps to split a symbol into, got None")
            if len(inputs.list_outputs()) != 1:
                raise AssertionError(
                    f"unroll: expected inputs of one output, got a group of {len(inputs.list_outputs())}: "
                    "give list(inputs), one symbol a step"
                )
            inputs = list(symbol.split(inputs, axis=in_axis, num_outputs=length, squeeze_axis=1))
    else:
        if length is not None and len(inputs) != length:
            raise AssertionError(f"inputs: expected {length} steps, got {len(inputs)}")
        if merge is True:
            inputs = symbol.Concat(*[symbol.expand_dims(one, axis=axis) for one in inputs], dim=axis)
            in_axis = axis
    if isinstance(inputs, symbol.Symbol) and axis != in_axis:
        inputs = symbol.swapaxes(inputs, dim1=axis, dim2=in_axis)
    return inputs, axis


class RNNParams:
    """Variables by name, made once, so that cells that share it share weights.

    Args:
        prefix: put before every name.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """The variable `<prefix><name>`; `kwargs` go to `sym.Variable` when it is made."""
        name = self._prefix + name
        if name not in self._params:
            self._params[name] = symbol.Variable(name, **kwargs)
        return self._params[name]


class BaseRNNCell:
    """Base of cells. A subclass defines `state_info`, `__call__(inputs, states)` and, with gates, `_gate_names`.

    Args:
        prefix: of the names of its variables and nodes.
        params: shared with other cells; its own when None.
    """

    _num_hidden = 0

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._own_params = params is None
        self._prefix = prefix
        self._params = params if params is not None else RNNParams(prefix)
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Count steps and states from 0 again, before another graph is built."""
        self._init_counter = -1
        self._counter = -1

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One step: the output and the next states."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(inputs, states)")

    @property
    def params(self) -> RNNParams:
        """The parameters; asking for them says that they are shared."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> StateInfo:
        """Shape (0 for the batch) and layout of each state."""
        raise NotImplementedError(f"{type(self).__name__} must define state_info")

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """The states' shapes, 0 for the batch."""
        return [info["shape"] for info in self.state_info]

    def _checked(self, states: States) -> States:
        """The states; ValueError when there are more or fewer than the cell has."""
        count, got = len(self.state_info), len(states) if isinstance(states, list | tuple) else value_text(states)
        if got != count:
            raise ValueError(
                f"{type(self).__name__}: states: expected {count}, got {got}: begin_state() makes the first"
            )
        return states

    @property
    def _gate_names(self) -> Sequence[str]:
        return ()

    def begin_state(self, func: Callable[..., Symbol] | None = None, **kwargs: Any) -> States:
        """Symbols for the first states: zeros of a batch size that inference finds, unless `func` makes others.

        Args:
            func: called with a name and each of `state_info`: `sym.zeros`, `sym.Variable`, …
        """
        self._check_unmodified()
        make = func or symbol.zeros
        states = []
        for info in self.state_info:
            self._init_counter += 1
            name = f"{self._prefix}begin_state_{self._init_counter}"
            states.append(make(name=name, **{**kwargs, **info}))
        return states

    def _check_unmodified(self) -> None:
        if self._modified:
            raise AssertionError(
                f"{type(self).__name__}: this cell is inside another one, such as a ZoneoutCell: call that one"
            )

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with the gates' joint weights and biases replaced by one array a gate."""
        unpacked = dict(args)
        gates = self._gate_names
        if not gates:
            return unpacked
        h = self._num_hidden
        for group in ("i2h", "h2h"):
            for kind in ("weight", "bias"):
                joint = self._take(unpacked, f"{self._prefix}{group}_{kind}")
                for j, gate in enumerate(gates):
                    unpacked[f"{self._prefix}{group}{gate}_{kind}"] = joint[j * h : (j + 1) * h].copy()
        return unpacked

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with the gates' arrays joined again: the inverse of `unpack_weights`."""
        packed = dict(args)
        gates = self._gate_names
        if not gates:
            return packed
        for group in ("i2h", "h2h"):
            for kind in ("weight", "bias"):
                parts = [self._take(packed, f"{self._prefix}{group}{gate}_{kind}") for gate in gates]
                packed[f"{self._prefix}{group}_{kind}"] = nd.concatenate(parts)
        return packed

    def _take(self, arrays: dict[str, Any], name: str) -> Any:
        """Take a parameter of this cell out of the network's.

        Raises:
            MXNetError: it is not among them.
        """
        if name not in arrays:
            got = ", ".join(sorted(arrays)) or "none"
            raise MXNetError(
                f"{type(self).__name__}: expected {name} among the parameters, got {got}: "
                f"make the cell with the prefix (here {self._prefix!r}) that it was trained with"
            )
        return arrays.pop(name)

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """Apply the cell to a sequence.

        Args:
            length: steps.
            inputs: one symbol of `layout`, or a list of `length` symbols (batch, features).
            begin_state: the first states; zeros when None.
            layout: "NTC" or "TNC".
            merge_outputs: True for one symbol of `layout`, False for a list of steps, None for whichever is cheaper.

        Returns:
            The outputs and the last states.
        """
        self.reset()
        steps, _ = normalize_sequence(length, inputs, layout, False)
        states = begin_state if begin_state is not None else self.begin_state()
        outputs: Any = []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
        outputs, _ = normalize_sequence(length, outputs, layout, merge_outputs)
        return outputs, states

    def _get_activation(self, inputs: Symbol, activation: Any, **kwargs: Any) -> Symbol:
        if isinstance(activation, str):
            function: Any = activation  # the operator says which there are
            return symbol.Activation(inputs, act_type=function, **kwargs)
        return activation(inputs, **kwargs)
