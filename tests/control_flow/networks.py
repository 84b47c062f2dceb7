"""Networks with foreach, while_loop and cond, written against either library: `build(mx)` with opbox or MXNet.

Importable by MXNet's Python: nothing of opbox is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["NETWORKS", "Network", "build"]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Network:
    """One row.

    Attributes:
        build: takes `mx`, returns the symbols whose group is the network.
        shapes: of all arguments.
        rows: for outputs that a while_loop stacks, how many rows it fills: MXNet leaves the others undefined.
        low, high: where arguments are drawn from.
        oracle: "all"; "forward" where MXNet cannot be asked for gradients, "file" where it cannot run the network,
            "" where its Python does not make it; with the reason beside the row.
        numeric: whether the gradients are derivatives; False where one is stopped.
    """

    build: Callable[[Any], list[Any]]
    shapes: Shapes
    rows: dict[int, int] | None = None
    low: float = -1.0
    high: float = 1.0
    oracle: str = "all"
    numeric: bool = True


def _cumulative(mx: Any) -> list[Any]:
    out, last = mx.sym.contrib.foreach(lambda x, s: (s + x, s + x), mx.sym.var("data"), mx.sym.var("s"))
    return [out, last]


def _scalars(mx: Any) -> list[Any]:
    out, last = mx.sym.contrib.foreach(lambda x, s: (x * s, s + x), mx.sym.var("data"), mx.sym.var("s"))
    return [out, last]


def _dense(mx: Any) -> list[Any]:
    weight, bias = mx.sym.var("weight"), mx.sym.var("bias")

    def body(x: Any, h: Any) -> tuple[Any, Any]:
        joined = mx.sym.concat(x, h, dim=1)
        h = mx.sym.tanh(mx.sym.FullyConnected(joined, weight, bias, num_hidden=4, name="fc"))
        return h, h

    out, last = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("h"))
    return [out * 2, last]


def _own_weights(mx: Any) -> list[Any]:
    def body(x: Any, h: Any) -> tuple[Any, Any]:
        h = mx.sym.Activation(mx.sym.FullyConnected(x + h, num_hidden=3, name="fc"), act_type="sigmoid")
        return h, [h]

    out, last = mx.sym.contrib.foreach(lambda x, h: body(x, h[0]), mx.sym.var("data"), [mx.sym.var("h")])
    return [out, *last]


def _lstm_cell(mx: Any) -> list[Any]:
    cell = mx.rnn.LSTMCell(3, prefix="lstm_")
    out, last = mx.sym.contrib.foreach(cell, mx.sym.var("data"), [mx.sym.var("h"), mx.sym.var("c")])
    return [out, *last]


def _lists(mx: Any) -> list[Any]:
    a, b, c = (mx.sym.var(name) for name in "abc")

    def body(xs: Any, states: Any) -> tuple[Any, Any]:
        (x, (y, z)), (s, (t,)) = xs, states
        return [x * t, [y + s], z * z], [s * 0.5 + z, [t - x * y]]

    (p, (q,), r), (s, (t,)) = mx.sym.contrib.foreach(body, [a, [b, c]], [mx.sym.var("s"), [mx.sym.var("t")]])
    return [p, q, r, s, t]


def _closure(mx: Any) -> list[Any]:
    w = mx.sym.var("w")
    outside = mx.sym.exp(w) * 2
    parts = mx.sym.split(mx.sym.var("pair"), num_outputs=2)

    def body(x: Any, s: Any) -> tuple[Any, Any]:
        return [outside, x * parts[1]], s + outside * x + parts[0]

    outs, last = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("s"))
    return [*outs, last, outside + w]


def _no_outputs(mx: Any) -> list[Any]:
    _, last = mx.sym.contrib.foreach(lambda x, s: ([], [s[0] * x]), mx.sym.var("data"), [mx.sym.var("s")])
    return list(last)


def _no_states(mx: Any) -> list[Any]:
    out, _ = mx.sym.contrib.foreach(lambda x, s: (mx.sym.square(x) * mx.sym.var("w"), []), mx.sym.var("data"), [])
    return [out]


def _swapped(mx: Any) -> list[Any]:
    def body(x: Any, states: Any) -> tuple[Any, Any]:
        return [x, states[0]], [states[1], states[0] * x]

    outs, last = mx.sym.contrib.foreach(body, mx.sym.var("data"), [mx.sym.var("s"), mx.sym.var("t")])
    return [*outs, *last]


def _twice(mx: Any) -> list[Any]:
    w = mx.sym.var("w")
    first, last = mx.sym.contrib.foreach(lambda x, s: (x * w, s + x), mx.sym.var("data"), mx.sym.var("s"))
    second, end = mx.sym.contrib.foreach(lambda x, s: (mx.sym.sin(x) + w, s * w + x), first, last)
    return [second, end, w * 3]


def _stopped(mx: Any) -> list[Any]:
    def body(x: Any, states: Any) -> tuple[Any, Any]:
        s, count = states
        return x * s, [mx.sym.BlockGrad(s) + x, count + 1]

    out, last = mx.sym.contrib.foreach(body, mx.sym.var("data"), [mx.sym.var("s"), mx.sym.var("count")])
    return [out, *last]


def _nested(mx: Any) -> list[Any]:
    w = mx.sym.var("w")

    def outer(row: Any, s: Any) -> tuple[Any, Any]:
        doubled = row * 2 + s

        def inner(x: Any, t: Any) -> tuple[Any, Any]:
            t = mx.sym.tanh(t * w + x * mx.sym.sum(doubled))
            return t, t

        out, last = mx.sym.contrib.foreach(inner, doubled, mx.sym.sum(s))
        return out, s + last.reshape((1,)).broadcast_to((3,))

    out, last = mx.sym.contrib.foreach(outer, mx.sym.var("data"), mx.sym.var("s"))
    return [out, last]


def _while(mx: Any) -> list[Any]:
    w = mx.sym.var("w")
    out, last = mx.sym.contrib.while_loop(
        lambda i, s: i < 3, lambda i, s: ([i * s, s * w], [i + 1, s * w + s]), [mx.sym.var("i"), mx.sym.var("s")], 5
    )
    return [*out, *last]


def _while_alone(mx: Any) -> list[Any]:
    limit = mx.sym.var("limit") * 3
    out, last = mx.sym.contrib.while_loop(
        lambda s: mx.sym.sum(s) < limit, lambda s: (s * s, s + 1), mx.sym.var("s"), max_iterations=3
    )
    return [out, last]


def _while_nested_lists(mx: Any) -> list[Any]:
    def func(i: Any, states: Any) -> tuple[Any, Any]:
        s, (t,) = states
        return None, (i + 1, [t, [s * t]])

    _, (i, (s, (t,))) = mx.sym.contrib.while_loop(
        lambda i, states: i < 4, func, [mx.sym.var("i"), [mx.sym.var("s"), [mx.sym.var("t")]]], max_iterations=6
    )
    return [i, s, t]


def _cond(mx: Any) -> list[Any]:
    a, b, w = (mx.sym.var(name) for name in "abw")
    return [
        mx.sym.contrib.cond(mx.sym.sum(a) < mx.sym.sum(b), lambda: a * w, lambda: b + a),
        mx.sym.contrib.cond(mx.sym.sum(a) > mx.sym.sum(b), lambda: a * w, lambda: b + a),
    ]


def _cond_lists(mx: Any) -> list[Any]:
    a, b = mx.sym.var("a"), mx.sym.var("b")
    c = mx.sym.exp(a)
    x, (y,) = mx.sym.contrib.cond(mx.sym.var("p"), lambda: [a * c, [b]], lambda: [b, [a * 2]])
    return [x, y, c]


def _cond_in_foreach(mx: Any) -> list[Any]:
    w = mx.sym.var("w")

    def body(x: Any, s: Any) -> tuple[Any, Any]:
        chosen = mx.sym.contrib.cond(mx.sym.sum(x) < 0, lambda: x * w + s, lambda: mx.sym.tanh(s * x))
        return chosen, s + chosen

    out, last = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("s"))
    return [out, last]


def _cond_in_while(mx: Any) -> list[Any]:
    w = mx.sym.var("w")

    def func(i: Any, s: Any) -> tuple[Any, Any]:
        s = mx.sym.contrib.cond(i < 2, lambda: s * w, lambda: mx.sym.sin(s) + w)
        return s, [i + 1, s]

    out, last = mx.sym.contrib.while_loop(lambda i, s: i < 4, func, [mx.sym.var("i"), mx.sym.var("s")], 6)
    return [out, *last]


def _while_in_foreach(mx: Any) -> list[Any]:
    w = mx.sym.var("w")

    def body(x: Any, s: Any) -> tuple[Any, Any]:
        _, (_, s) = mx.sym.contrib.while_loop(
            lambda i, t: i < 1, lambda i, t: ([], [i + 0.4, t * w + x]), [mx.sym.sum(x) * 0, s], max_iterations=5
        )
        return s, s

    out, last = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("s"))
    return [out, last]


def _foreach_in_while(mx: Any) -> list[Any]:
    data = mx.sym.var("data")

    def func(i: Any, s: Any) -> tuple[Any, Any]:
        out, s = mx.sym.contrib.foreach(lambda x, t: (x * t, mx.sym.sin(t + x)), data, s)
        return mx.sym.sum(out), [i + 1, s]

    out, last = mx.sym.contrib.while_loop(lambda i, s: i < 2, func, [mx.sym.var("i"), mx.sym.var("s")], 2)
    return [out, *last]


NETWORKS: dict[str, Network] = {
    "cumulative": Network(_cumulative, {"data": (4, 2, 3), "s": (2, 3)}),
    "scalars": Network(_scalars, {"data": (5, 1), "s": (1,)}),
    "dense": Network(_dense, {"data": (3, 2, 5), "h": (2, 4), "weight": (4, 9), "bias": (4,)}),
    "own weights": Network(_own_weights, {"data": (3, 2, 3), "h": (2, 3), "fc_weight": (3, 3), "fc_bias": (3,)}),
    "LSTM cell": Network(
        _lstm_cell,
        {
            "data": (3, 2, 4),
            "h": (2, 3),
            "c": (2, 3),
            "lstm_i2h_weight": (12, 4),
            "lstm_i2h_bias": (12,),
            "lstm_h2h_weight": (12, 3),
            "lstm_h2h_bias": (12,),
        },
    ),
    "lists": Network(_lists, {"a": (3, 2), "b": (3, 2), "c": (3, 2), "s": (2,), "t": (2,)}),
    # MXNet cannot bind the backward of a body in which a head does not depend on an input whose gradient is wanted.
    "closure": Network(_closure, {"data": (3, 1, 2), "s": (1, 2), "w": (1, 2), "pair": (1, 4)}, oracle="forward"),
    "no outputs": Network(_no_outputs, {"data": (4, 2), "s": (2,)}),
    "no states": Network(_no_states, {"data": (4, 2), "w": (2,)}),
    "swapped": Network(_swapped, {"data": (5, 2), "s": (2,), "t": (2,)}),
    "twice": Network(_twice, {"data": (3, 2), "s": (2,), "w": (2,)}, oracle="forward"),  # as "closure"
    "stopped": Network(_stopped, {"data": (3, 2), "s": (2,), "count": (1,)}, numeric=False),
    "nested": Network(_nested, {"data": (2, 3), "s": (3,), "w": (1,)}),
    "while": Network(_while, {"i": (1,), "s": (1,), "w": (1,)}, rows={0: 3, 1: 3}, low=0.1, high=0.9),
    # MXNet cannot bind the backward of a loop with an input that only cond reads.
    "while alone": Network(_while_alone, {"s": (2,), "limit": (1,)}, rows={0: 1}, low=1.2, high=1.4, oracle="forward"),
    # MXNet counts loop variables with their lists flat, and again with their lists: they may not be nested.
    "while nested lists": Network(_while_nested_lists, {"i": (1,), "s": (2,), "t": (2,)}, low=0.1, high=0.9, oracle=""),
    "cond": Network(_cond, {"a": (2, 2), "b": (2, 2), "w": (2, 2)}, oracle="forward"),  # as "closure"
    "cond lists": Network(_cond_lists, {"p": (1,), "a": (3,), "b": (3,)}, oracle="forward"),  # as "closure"
    # MXNet cannot infer the shapes of branches and while loops inside a body.
    "cond in foreach": Network(_cond_in_foreach, {"data": (4, 3), "s": (3,), "w": (3,)}, oracle="file"),
    # MXNet's gradient of w is not the derivative: every step's branch is that of the last.
    "cond in while": Network(
        _cond_in_while, {"i": (1,), "s": (1,), "w": (1,)}, rows={0: 4}, low=0.1, high=0.9, oracle="forward"
    ),
    "while in foreach": Network(
        _while_in_foreach, {"data": (2, 1), "s": (1,), "w": (1,)}, low=0.1, high=0.9, oracle="file"
    ),  # as "cond in foreach"
    "foreach in while": Network(_foreach_in_while, {"data": (3, 1), "i": (1,), "s": (1,)}, low=0.1, high=0.9),
}


def build(mx: Any, name: str) -> Any:
    """The network of a row, with names counted from 0."""
    with mx.name.NameManager():
        return mx.sym.Group(NETWORKS[name].build(mx))
