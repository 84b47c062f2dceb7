"""Operators with subgraphs: how many they have, and how their inputs reach the variables of their subgraphs.

A node of `_foreach`, `_while_loop` or `_cond` carries whole graphs. Their variables are counted in the order of the
subgraph, arguments and auxiliary states together; the parameters that end in `_locs` are such positions (`_foreach`,
`func_var_locs`) or, for each variable, the number of the node's input that it is (the others). `num_args` is the number
of the node's inputs and subgraphs together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import GraphError

__all__ = ["MAX_LEVELS", "SUBGRAPHS", "aux_inputs", "wiring"]

SUBGRAPHS: dict[str, tuple[str, ...]] = {
    "_foreach": ("body",),
    "_while_loop": ("cond", "func"),
    "_cond": ("pred", "then_branch", "else_branch"),
}
"""The operators that have subgraphs, and what each subgraph is, in the order of files."""

MAX_LEVELS = 12
"""The depth to which subgraphs may lie in subgraphs."""

_LOCS = {
    "_while_loop": ("cond_input_locs", "func_input_locs"),
    "_cond": ("cond_input_locs", "then_input_locs", "else_input_locs"),
}


def wiring(op: str, locs: Mapping[str, Sequence[int]], variables: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each subgraph, the number of the node's input that each of its variables is.

    Args:
        op: the operator's name.
        locs: the parameters that end in `_locs`, by name.
        variables: how many variables each subgraph has.

    Raises:
        GraphError: the positions do not fit the subgraphs, or the node has another number of subgraphs.

    Example:
        >>> wiring("_foreach", {"in_data_locs": [0], "in_state_locs": [2], "remain_locs": [1]}, [3])
        ((0, 2, 1),)
    """
    what = SUBGRAPHS[op]
    if len(variables) != len(what):
        raise GraphError(f"expected {len(what)} subgraphs ({', '.join(what)}), got {len(variables)}")
    if op == "_foreach":
        order = [*locs["in_data_locs"], *locs["in_state_locs"], *locs["remain_locs"]]
        if sorted(order) != list(range(variables[0])):
            raise GraphError(
                "in_data_locs, in_state_locs and remain_locs: expected each of the body's variables once, 0 to "
                f"{variables[0] - 1}, got {order}"
            )
        inputs = [0] * len(order)
        for number, position in enumerate(order):
            inputs[position] = number
        return (tuple(inputs),)
    for key, count in zip(_LOCS[op], variables, strict=True):
        if len(locs[key]) != count:
            raise GraphError(
                f"{key}: expected an input for each of the subgraph's {count} variables, got {len(locs[key])}"
            )
        if any(number < 0 for number in locs[key]) or len(set(locs[key])) != count:
            raise GraphError(f"{key}: expected numbers of inputs, none of them twice, got {list(locs[key])}")
    own = locs.get("func_var_locs", ())
    if len(set(own)) != len(own) or any(not 0 <= position < variables[1] for position in own):
        raise GraphError(f"func_var_locs: expected different variables of func, 0 to {variables[1] - 1}, got {own}")
    return tuple(tuple(locs[key]) for key in _LOCS[op])


def aux_inputs(routes: Sequence[Sequence[int]], aux: Sequence[Any]) -> frozenset[int]:
    """The node's inputs that are auxiliary states in one of its subgraphs.

    Args:
        routes: what `wiring` gives.
        aux: for each subgraph, the positions of the auxiliary states among its variables.
    """
    return frozenset(route[k] for route, positions in zip(routes, aux, strict=True) for k in positions)
