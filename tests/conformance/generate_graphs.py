"""Random graphs as symbol JSON, grown operator by operator from a few inputs whose shapes are known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

__all__ = ["Growing", "grow"]

Shape = tuple[int, ...]


@dataclass
class Growing:
    """A graph that grows: nodes as JSON has them, and the (node, output, shape) that may be read."""

    rng: Random
    random: bool = True
    nodes: list[dict[str, Any]] = field(default_factory=list)
    open: list[tuple[int, int, Shape]] = field(default_factory=list)
    data: dict[str, Shape] = field(default_factory=dict)
    read: set[tuple[int, int]] = field(default_factory=set)

    def variable(self, name: str) -> int:
        self.nodes.append({"op": "null", "name": name, "inputs": []})
        return len(self.nodes) - 1

    def input(self, shape: Shape) -> tuple[int, int, Shape]:
        """A fresh input of a known shape."""
        name = f"data{len(self.data)}"
        self.data[name] = shape
        self.open.append((self.variable(name), 0, shape))
        return self.open[-1]

    def pick(self, *ranks: int) -> tuple[int, int, Shape]:
        """Something that can be read, of one of these ranks; a new input when there is nothing."""
        fitting = [entry for entry in self.open if not ranks or len(entry[2]) in ranks]
        if fitting:
            return self.rng.choice(fitting[-6:])
        rank = self.rng.choice(ranks or (2, 4))
        return self.input(tuple(self.rng.randint(2, 6) for _ in range(rank)))

    def call(
        self, op: str, reads: list[tuple[int, int, Shape]], attrs: dict[str, Any], weights: int, outs: list[Shape]
    ) -> None:
        """Append a node; `weights` further inputs are variables named as MXNet would name them."""
        name = f"{op.lower().strip('_')}{len(self.nodes)}"
        inputs = [[node, out, 0] for node, out, _ in reads]
        self.read |= {(node, out) for node, out, _ in reads}
        inputs += [[self.variable(f"{name}_in{i}"), 0, 0] for i in range(weights)]
        text = {key: str(value) for key, value in attrs.items()}
        self.nodes.append({"op": op, "name": name, "attrs": text, "inputs": inputs})
        at = len(self.nodes) - 1
        self.open += [(at, k, shape) for k, shape in enumerate(outs)]

    def shapes(self) -> dict[str, Shape]:
        """The shapes of the inputs that somebody reads: the others are no arguments."""
        names = {self.nodes[n]["name"] for n, _ in self.read}
        return {name: shape for name, shape in self.data.items() if name in names}

    def json(self) -> str:
        """The symbol; its heads are what nobody reads."""
        heads = [[n, k, 0] for n, k, _ in self.open if (n, k) not in self.read and self.nodes[n]["op"] != "null"]
        arguments = [i for i, node in enumerate(self.nodes) if node["op"] == "null"]
        return json.dumps({"nodes": self.nodes, "arg_nodes": arguments, "heads": heads})


def _dense(g: Growing) -> None:
    x = g.pick(2, 3, 4)
    hidden, bias = g.rng.randint(2, 6), g.rng.random() < 0.5
    g.call("FullyConnected", [x], {"num_hidden": hidden, "no_bias": not bias}, 1 + bias, [(x[2][0], hidden)])


def _convolution(g: Growing) -> None:
    x = g.pick(4)
    filters = g.rng.randint(1, 4)
    out = (x[2][0], filters, *x[2][2:])
    g.call("Convolution", [x], {"kernel": (3, 3), "pad": (1, 1), "num_filter": filters}, 2, [out])


def _pooling(g: Growing) -> None:
    x = g.pick(4)
    if min(x[2]) < 2:
        return
    attrs = {"kernel": (2, 2), "stride": (2, 2), "pooling_convention": "full", "pool_type": "max"}
    g.call("Pooling", [x], attrs, 0, [(*x[2][:2], *((d + 1) // 2 for d in x[2][2:]))])


def _unary(g: Growing) -> None:
    x = g.pick()
    op, attrs = g.rng.choice(
        [
            ("Activation", {"act_type": "tanh"}),
            ("sqrt", {}),
            ("_mul_scalar", {"scalar": 2.0}),
            ("Dropout" if g.random else "cbrt", {}),
            ("BlockGrad", {}),
            ("softmax", {}),
            ("zeros_like", {}),
        ]
    )
    g.call(op, [x], attrs, 0, [x[2]])


def _sum(g: Growing) -> None:
    x = g.pick()
    same = [entry for entry in g.open if entry[2] == x[2]]
    if g.rng.random() < 0.3:
        # A weight of the same shape, told by the other operand alone.
        g.call(g.rng.choice(["elemwise_add", "elemwise_mul"]), [x], {}, 1, [x[2]])
    else:
        y = g.rng.choice(same)
        g.call(g.rng.choice(["elemwise_add", "elemwise_sub", "broadcast_add"]), [x, y], {}, 0, [x[2]])


def _concat(g: Growing) -> None:
    x = g.pick(2, 4)
    fitting = [e for e in g.open if len(e[2]) == len(x[2]) and (e[2][0], *e[2][2:]) == (x[2][0], *x[2][2:])]
    parts = [x, *g.rng.choices(fitting, k=g.rng.randint(1, 2))]
    out = (x[2][0], sum(p[2][1] for p in parts), *x[2][2:])
    g.call("Concat", parts, {"num_args": len(parts), "dim": 1}, 0, [out])


def _split(g: Growing) -> None:
    x = g.pick(2, 3, 4)
    axis = g.rng.randrange(len(x[2]))
    count = g.rng.choice([n for n in range(1, 4) if x[2][axis] % n == 0])
    out = (*x[2][:axis], x[2][axis] // count, *x[2][axis + 1 :])
    g.call("SliceChannel", [x], {"num_outputs": count, "axis": axis}, 0, [out] * count)


def _transpose(g: Growing) -> None:
    x = g.pick(2, 3, 4)
    axes = list(range(len(x[2])))
    g.rng.shuffle(axes)
    g.call("transpose", [x], {"axes": tuple(axes)}, 0, [tuple(x[2][a] for a in axes)])


def _flatten(g: Growing) -> None:
    x = g.pick(3, 4)
    rest = 1
    for d in x[2][1:]:
        rest *= d
    g.call("Flatten", [x], {}, 0, [(x[2][0], rest)])


def _reshape(g: Growing) -> None:
    x = g.pick(2, 3, 4)
    if g.rng.random() < 0.5:
        rest = 1
        for d in x[2][1:]:
            rest *= d
        g.call("Reshape", [x], {"shape": (0, -1)}, 0, [(x[2][0], rest)])
    else:
        g.call("Reshape", [x], {"shape": (0, 0, -2, 1)}, 0, [(*x[2], 1)])


def _batch_norm(g: Growing) -> None:
    x = g.pick(2, 4)
    g.call("BatchNorm", [x], {"fix_gamma": False}, 4, [x[2]])


def _reduce(g: Growing) -> None:
    x = g.pick(2, 3, 4)
    axis = g.rng.randrange(1, len(x[2]))
    g.call("mean", [x], {"axis": axis, "keepdims": True}, 0, [(*x[2][:axis], 1, *x[2][axis + 1 :])])


def _expand(g: Growing) -> None:
    x = g.pick(2, 3)
    axis = g.rng.randrange(len(x[2]) + 1)
    g.call("expand_dims", [x], {"axis": axis}, 0, [(*x[2][:axis], 1, *x[2][axis:])])


def _slice_axis(g: Growing) -> None:
    x = g.pick(2, 3, 4)
    axis = g.rng.randrange(len(x[2]))
    g.call("slice_axis", [x], {"axis": axis, "begin": 0, "end": 1}, 0, [(*x[2][:axis], 1, *x[2][axis + 1 :])])


def _embedding(g: Growing) -> None:
    x = g.pick(2)
    g.call("Embedding", [x], {"input_dim": 7, "output_dim": 3}, 1, [(*x[2], 3)])


def _dot(g: Growing) -> None:
    x = g.pick(2)
    y = g.input((x[2][1], g.rng.randint(2, 5)))
    g.call("dot", [x, y], {}, 0, [(x[2][0], y[2][1])])


def _softmax_output(g: Growing) -> None:
    x = g.pick(2)
    g.call("SoftmaxOutput", [x], {}, 1, [x[2]])


STEPS = [
    _dense,
    _convolution,
    _pooling,
    _unary,
    _unary,
    _sum,
    _sum,
    _concat,
    _split,
    _transpose,
    _flatten,
    _reshape,
    _batch_norm,
    _reduce,
    _expand,
    _slice_axis,
    _embedding,
    _dot,
    _softmax_output,
]


def grow(rng: Random, size: int, *, to_run: bool = False) -> Growing:
    """A graph of about `size` operator calls; `to_run`: without what is random or has no gradient for its input."""
    growing = Growing(rng, random=not to_run)
    steps = [step for step in STEPS if not to_run or step is not _embedding]
    growing.input(tuple(rng.randint(2, 6) for _ in range(rng.choice([2, 4, 4]))))
    for _ in range(size):
        rng.choice(steps)(growing)
    return growing
