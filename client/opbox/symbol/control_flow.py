"""Loops and branches as operators: `mx.sym.contrib.foreach`, `while_loop`, `cond`.

A body is called once, on variables; what it computes becomes a graph inside one node. What was computed outside and is
used inside becomes an input of the node, as do free variables: they have gradients like others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from opbox_protocol.control_flow import SUBGRAPHS
from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import attribute_text

from .. import _schema, attribute
from .. import name as naming
from ..base import source_line
from ..nesting import flatten, pair, regroup
from .compose import create
from .node import Entry, Node, ordered
from .symbol import Symbol
from .variable import var

__all__ = ["cond", "foreach", "while_loop"]

SCOPE = "__subgraph_name__"
"""The attribute that marks a loop body's own nodes."""

_scopes: Counter[str] = Counter()


def foreach(body: Callable[..., Any], data: Any, init_states: Any, name: str = "foreach") -> tuple[Any, Any]:
    """Run `out, states = body(slice, states)` over the first axis of data, as one operator.

    Args:
        body: takes a slice of data and the states, in the lists that data and init_states come in; returns outputs, a
            Symbol or nested lists of them, and the new states, in the lists of init_states.
        data: a Symbol (T, …), or nested lists of them, of one length T.
        init_states: the first states: a Symbol, or nested lists of them; a state keeps its shape and type.
        name: of the graph inside.

    Returns:
        The outputs of all steps, stacked along a new first axis (T, …), and the last states.

    Raises:
        TypeError: something else than Symbols among data, states, or what body returns.
        ValueError: body returns no pair, or states in other lists; or it does not use a data input or a state.

    Example:
        step = lambda x, h: (mx.sym.tanh(x + h),) * 2
        outputs, last = mx.sym.contrib.foreach(step, mx.sym.Variable("data"), mx.sym.Variable("h0"))
    """
    inputs, data_layout = _symbols(data, "foreach: data")
    first, state_layout = _symbols(init_states, "foreach: init_states")
    with _SubgraphScope(name) as scope:
        slots = _variables([*inputs, *first])
        slices, states = slots[: len(inputs)], slots[len(inputs) :]
        outputs, last = pair(body(regroup(slices, data_layout), regroup(states, state_layout)), "foreach: body")
        outputs, out_layout = _symbols(outputs, "foreach: the outputs of body")
        last, last_layout = _symbols(last, "foreach: the states that body returns")
        if last_layout != state_layout:
            raise ValueError(
                f"foreach: expected body to return states like init_states, {_shown(state_layout)}, got "
                f"{_shown(last_layout)}"
            )
        taken = {output.name for output in outputs}
        heads = [*scope.heads(outputs, [*outputs, *last]), *scope.heads(last, [*outputs, *last], taken)]
    graph = scope.cut(heads)
    for k, slot in enumerate(slots):
        if slot._heads[0][0] not in graph.variables:
            what = "data input" if k < len(inputs) else "state"
            number = k if k < len(inputs) else k - len(inputs)
            raise ValueError(f"foreach: expected body to use every data input and state, got {what} {number} unused")
    own = [graph.variables.index(slot._heads[0][0]) for slot in slots]
    free = [k for k in range(len(graph.variables)) if k not in own]
    results = _node(
        "_foreach",
        [graph],
        [*(symbol._heads[0] for symbol in (*inputs, *first)), *(graph.entry(k) for k in free)],
        {
            "num_outputs": len(heads),
            "num_out_data": len(outputs),
            "in_state_locs": own[len(inputs) :],
            "in_data_locs": own[: len(inputs)],
            "remain_locs": free,
        },
    )
    return regroup(results[: len(outputs)], out_layout), regroup(results[len(outputs) :], state_layout)


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., Any],
    loop_vars: Any,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[Any, Any]:
    """Run `out, loop_vars = func(*loop_vars)` while `cond(*loop_vars)` is not zero, as one operator.

    Args:
        cond: takes the loop variables, returns a Symbol of one element.
        func: takes the loop variables; returns outputs (a Symbol, nested lists of them, or None) and the new loop
            variables.
        loop_vars: a Symbol, or nested lists of them; a loop variable keeps its shape and type.
        max_iterations: the most steps.
        name: of the graphs inside.

    Returns:
        The outputs of the steps, stacked along a new first axis (max_iterations, …), with zeros where there were fewer
        steps, and the last loop variables.

    Raises:
        TypeError: something else than Symbols among them.
        ValueError: max_iterations is missing or no number, there are no loop variables or func returns another number
            of them, one has no part in func, or cond returns no Symbol.

    Example:
        i = mx.sym.Variable("i")
        squares, last = mx.sym.contrib.while_loop(lambda i: i < 5, lambda i: (i * i, [i + 1]), [i], max_iterations=9)
    """
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations: expected the most steps that it may take, got none")
    most = _integer(max_iterations)
    first, layout = _symbols(loop_vars, "while_loop: loop_vars")
    if not first:
        raise ValueError("while_loop: loop_vars: expected one loop variable or more, got none")

    def arguments(slots: Sequence[Symbol]) -> list[Any]:
        return [slots[0]] if layout is None else list(regroup(slots, layout))

    with _SubgraphScope(f"{name}_cond") as scope:
        cond_slots = _variables(first)
        decision = cond(*arguments(cond_slots))
        if not isinstance(decision, Symbol):
            raise ValueError(f"while_loop: cond: expected it to return a Symbol, got {type(decision).__name__}")
        deciding = scope.cut(scope.heads([decision], [decision]))
    with _SubgraphScope(f"{name}_func") as scope:
        slots = _variables(first)
        outputs, last = pair(func(*arguments(slots)), "while_loop: func")
        outputs, out_layout = _symbols([] if outputs is None else outputs, "while_loop: the outputs of func")
        last, _ = _symbols([] if last is None else last, "while_loop: the loop variables that func returns")
        if len(last) != len(first):
            raise ValueError(f"while_loop: func: expected {len(first)} loop variables back, got {len(last)}")
        heads = scope.heads([*outputs, *last], [*outputs, *last])
    graph = scope.cut(heads)
    for k, slot in enumerate(slots):
        if slot._heads[0][0] not in graph.variables:
            raise ValueError(f"while_loop: expected every loop variable to have a part in func, got none of number {k}")
    begins = {id(slot._heads[0][0]): symbol._heads[0] for slot, symbol in zip(cond_slots, first, strict=True)}
    begins |= {id(slot._heads[0][0]): symbol._heads[0] for slot, symbol in zip(slots, first, strict=True)}
    inputs, (cond_locs, func_locs) = _union([deciding, graph], begins)
    results = _node(
        "_while_loop",
        [deciding, graph],
        inputs,
        {
            "max_iterations": most,
            "cond_input_locs": cond_locs,
            "func_input_locs": func_locs,
            "func_var_locs": [graph.variables.index(slot._heads[0][0]) for slot in slots],
            "num_out_data": len(outputs),
            "num_outputs": len(heads),
        },
    )
    return regroup(results[: len(outputs)], out_layout), regroup(results[len(outputs) :], layout)


def cond(pred: Symbol, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond") -> Any:
    """One operator that computes `then_func()` where `pred` is not zero, and `else_func()` where it is.

    Args:
        pred: a Symbol of one element.
        then_func, else_func: without arguments; both return a Symbol, or nested lists of as many, of equal shapes and
            types.
        name: of the graphs inside.

    Returns:
        A Symbol, or Symbols in the lists of then_func.

    Raises:
        TypeError: something else than Symbols among them.
        ValueError: pred has several outputs, or the branches return different numbers of Symbols.

    Example:
        a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
        larger = mx.sym.contrib.cond(a < b, lambda: b * 2, lambda: a * 2)
    """
    graphs, layouts, counts = [], [], []
    branches = (("pred", lambda: pred), ("then", then_func), ("else", else_func))
    for what, function in branches:
        with _SubgraphScope(f"{name}_{what}") as scope:
            outputs, layout = _symbols(function(), f"cond: {what}")
            graphs.append(scope.cut(scope.heads(outputs, outputs)))
        layouts.append(layout)
        counts.append(len(outputs))
    if counts[0] != 1:
        raise ValueError(f"cond: pred: expected a Symbol of one output, got {counts[0]}")
    if counts[1] != counts[2]:
        raise ValueError(f"cond: expected as many outputs of both branches, got {counts[1]} and {counts[2]}")
    inputs, (cond_locs, then_locs, else_locs) = _union(graphs, {})
    results = _node(
        "_cond",
        graphs,
        inputs,
        {
            "cond_input_locs": cond_locs,
            "then_input_locs": then_locs,
            "else_input_locs": else_locs,
            "num_outputs": counts[1],
        },
    )
    return regroup(results, layouts[1])


class _Subgraph:
    """A graph that was cut out of what it was composed in.

    Attributes:
        heads: its outputs.
        variables: its variables in order.
        outside: what those variables that stand for something outside are there, by identity.
    """

    def __init__(self, heads: list[Entry], outside: dict[int, Entry]) -> None:
        self.heads = heads
        self.variables = [node for node in ordered(heads) if node.op is None]
        self.outside = outside

    def entry(self, number: int) -> Entry:
        """Return a free variable's entry in the outer graph: the variable, or the entry that it replaces."""
        node = self.variables[number]
        return self.outside.get(id(node), (node, 0))


class _SubgraphScope(attribute.AttrScope):
    """Marks the nodes made inside with a name that no other scope has."""

    def __init__(self, name: str) -> None:
        around = attribute.current().get(None).get(SCOPE)
        name = f"{around}${name}" if around else name
        self.name = f"{name}{_scopes[name]}"
        _scopes[name] += 1
        super().__init__(**{SCOPE: self.name})

    def __enter__(self) -> _SubgraphScope:
        super().__enter__()
        return self

    def heads(self, symbols: Sequence[Symbol], all_outputs: Sequence[Symbol], taken: Any = ()) -> list[Entry]:
        """The outputs of the graph: copies of those that are variables, or were made outside.

        Args:
            symbols: the outputs.
            all_outputs: of the whole graph.
            taken: names of outputs that are there already.
        """
        every = [entry for symbol in all_outputs for entry in symbol._heads]
        inputs = {node.name for node in ordered(every) if node.op is None}
        entries = []
        for symbol in symbols:
            node = symbol._heads[0][0]
            if node.name in inputs or node.name in taken or node.attrs.get(SCOPE) != self.name:
                entries += create(_schema.get("_copy"), "identity", [symbol], {}, {})
            else:
                entries += symbol._heads
        return entries

    def cut(self, heads: Sequence[Entry]) -> _Subgraph:
        """The graph of the nodes made inside; a variable stands for each output or variable from outside they read."""
        outside: dict[int, Entry] = {}
        standing: dict[tuple[int, int], Node] = {}
        copies: dict[int, Node] = {}

        def copied(entry: Entry) -> Entry:
            node, index = entry
            if node.attrs.get(SCOPE) == self.name:
                return (copies[id(node)], index) if node.op is not None else entry
            key = (id(node), index)
            if key not in standing:
                standing[key] = Node(None, node.output_name(index), {}, [])
                outside[id(standing[key])] = entry
            return standing[key], 0

        for node in ordered(heads):
            if node.op is not None and node.attrs.get(SCOPE) == self.name:
                inputs = [copied(entry) for entry in node.inputs]
                copies[id(node)] = Node(node.op, node.name, node.attrs, inputs, node.source, node.subgraphs)
        return _Subgraph([copied(head) for head in heads], outside)


def _symbols(value: Any, what: str) -> tuple[list[Symbol], Any]:
    symbols, layout = flatten(value, Symbol, what, list)
    return symbols, layout


def _variables(symbols: Sequence[Symbol]) -> list[Symbol]:
    """A variable for each symbol, named after it; no two of one name."""
    taken: Counter[str] = Counter()
    slots = []
    for symbol in symbols:
        node, index = symbol._heads[0]
        name = f"{node.name}-{index}"
        taken[name] += 1
        slots.append(var(name if taken[name] == 1 else f"{name}-again{taken[name] - 1}"))
    return slots


def _shown(layout: Any) -> str:
    return "one Symbol" if layout is None else f"{len(layout)} in a list" if isinstance(layout, list) else "a group"


def _integer(value: Any) -> int:
    try:
        return int(value.asscalar() if hasattr(value, "asscalar") else value)
    except (TypeError, ValueError):
        raise ValueError(f"while_loop: max_iterations: expected a whole number, got {value!r}") from None


def _union(graphs: Sequence[_Subgraph], begins: dict[int, Entry]) -> tuple[list[Entry], list[list[int]]]:
    """The inputs that graphs need together, each once, and for each graph the input that each of its variables is."""
    numbers: dict[Any, int] = {}
    inputs: list[Entry] = []
    locs: list[list[int]] = []
    for graph in graphs:
        locs.append([])
        for k, variable in enumerate(graph.variables):
            entry = begins.get(id(variable)) or graph.entry(k)
            # A loop variable only begins as its entry: as a free variable, the same entry is another input. Variables
            # of one name are one, in whichever graph they were made.
            name = entry[0].name if entry[0].op is None else id(entry[0])
            key = (name, entry[1], id(variable) in begins)
            if key not in numbers:
                numbers[key] = len(inputs)
                inputs.append(entry)
            locs[-1].append(numbers[key])
    return inputs, locs


def _node(kind: str, graphs: Sequence[_Subgraph], inputs: list[Entry], params: dict[str, Any]) -> list[Symbol]:
    """The outputs of a new node."""
    op = _schema.get(kind)
    attrs = {key: attribute_text(value) for key, value in attribute.current().get(None).items()}
    attrs |= {key: attribute_text(value) for key, value in params.items()}
    attrs["num_args"] = attribute_text(len(inputs) + len(SUBGRAPHS[kind]))
    name = naming.current().get(None, kind)
    op.check(attrs, name)
    node = Node(op, name, attrs, inputs, source_line(), [graph.heads for graph in graphs])
    if not params["num_outputs"]:
        raise MXNetError(f"{name} ({kind}): expected one output or state or more, got none")
    return [Symbol([(node, k)]) for k in range(params["num_outputs"])]
