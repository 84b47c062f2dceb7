"""Symbols built alike by opbox and by MXNet 1.9.1: `build(mx)` tells everything about each.

Run by MXNet's Python, this writes what the tests compare with: `python tests/client/builders.py recorded/symbols.json`.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def graph_of(s: Any) -> dict[str, Any]:
    """All that a symbol says of itself."""
    return {
        "json": s.tojson(),
        "arguments": s.list_arguments(),
        "outputs": s.list_outputs(),
        "states": s.list_auxiliary_states(),
        "inputs": s.list_inputs(),
        "name": s.name,
        "repr": repr(s),
        "attr_dict": s.attr_dict(),
        "list_attr": s.list_attr(),
        "debug_str": s.debug_str(),
        "internals": s.get_internals().list_outputs(),
        "children": repr(s.get_children()),
    }


def variables(mx: Any) -> tuple[Any, Any, Any]:
    a = mx.sym.Variable("a", shape=(0, 3), lr_mult=2, dtype="float16", init='["one", {}]', __foo__=3)
    return a, mx.sym.var("b"), mx.sym.var("c", wd_mult=0.5, attr={"__k__": "v"})


def variable(mx: Any) -> Any:
    return variables(mx)[0]


def mlp(mx: Any) -> Any:
    net = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="fc1", attr={"__lr_mult__": "2", "__x__": "y"})
    net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.FullyConnected(net, num_hidden=3, lr_mult=2)
    return mx.sym.SoftmaxOutput(net, name="softmax")


def batch_norm(mx: Any) -> Any:
    a, b, _ = variables(mx)
    net = mx.sym.BatchNorm(mx.sym.FullyConnected(a, num_hidden=10, name="fc1"))
    return (net + b) * 2 - 1 / (b**2)


def batch_norm_outputs(mx: Any) -> Any:
    moving = mx.sym.Variable("mm")
    return mx.sym.BatchNorm(variables(mx)[0], name="bn", output_mean_var=True, fix_gamma=False, moving_mean=moving)


def convolution(mx: Any) -> Any:
    net = mx.sym.Convolution(variables(mx)[1], kernel=(3, 3), num_filter=8, pad=[1, 1], no_bias=True, name="c1")
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="avg")
    return mx.sym.Dropout(mx.sym.Flatten(net), p=0.3)


def several_outputs(mx: Any) -> Any:
    a = variables(mx)[0]
    p = mx.sym.SliceChannel(a, num_outputs=3, name="sl")
    one = mx.sym.split(a, num_outputs=1, name="one")
    return mx.sym.Group([p[0] + p[1], p[2], mx.sym.Concat(*p, dim=1), one, *p[1:]])


def scopes(mx: Any) -> Any:
    with mx.AttrScope(ctx_group="dev1", __k__="v"):
        x = mx.sym.Variable("x")
        y = mx.sym.FullyConnected(x, num_hidden=3, name="y")
        with mx.AttrScope(__k__="w"):
            net = x + y
    with mx.name.Prefix("p_"):
        net = mx.sym.FullyConnected(net, num_hidden=3, name="q")
        net = mx.sym.Activation(net, act_type="tanh")
    with mx.name.NameManager():
        return mx.sym.Activation(net, act_type="tanh")


def operators(mx: Any) -> Any:
    a, b, _ = variables(mx)
    results = [
        a > b,
        a > 1,
        a == b,
        a == 2.0,
        a != 1,
        a != b,
        a <= b,
        a <= 1,
        a >= b,
        a >= 1,
        a < b,
        a < 3,
        a % 2,
        2 % a,
    ]
    results += [a % b, -a, abs(a), 2 - a, 2 / a, a / 2, 2**a, a**2, a**b, a - b, a * b, a / b, a - 1, a * 3.0, 1 + a]
    return mx.sym.Group(results)


def functions(mx: Any) -> Any:
    a, b, c = variables(mx)
    s = mx.sym
    results = [
        s.maximum(a, b),
        s.maximum(a, 1),
        s.minimum(1, a),
        s.minimum(a, b),
        s.pow(a, 2),
        s.pow(2, a),
        s.pow(a, b),
    ]
    results += [s.hypot(a, b), s.hypot(a, 2), s.add_n(a, b, c), s.ElementWiseSum(a, b), s.zeros((0, 3))]
    results += [
        s.ones((2,), name="o", __layout__="NC"),
        s.full((2,), 3),
        s.arange(5),
        s.arange(0, 10, 2, dtype="int32"),
    ]
    return s.Group(results)


def methods(mx: Any) -> Any:
    a, b, _ = variables(mx)
    results = [
        a.reshape((2, 3)),
        a.reshape(shape=(0, -1)),
        a.sum(axis=1),
        a.mean(axis=(0, 1), keepdims=True),
        a.flatten(),
    ]
    results += [
        a.transpose(axes=(1, 0)),
        a.swapaxes(0, 1),
        a.astype("float16"),
        a.slice_axis(axis=1, begin=0, end=None),
    ]
    results += [a.expand_dims(1), a.clip(0, 1), a.exp(), a.tile(reps=(2, 2)), a.take(b), a.squeeze(), a.max(), a.norm()]
    results += [a.broadcast_to(shape=(2, 3)), a.log_softmax(), a.repeat(repeats=2), a.split(num_outputs=3, axis=1)[1]]
    results += [a.argmax(axis=0), a.sort(), a.topk(k=2), a.pad(mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1))]
    return mx.sym.Group(results)


def composed(mx: Any) -> Any:
    a, b, _ = variables(mx)
    net = mx.sym.FullyConnected(mx.sym.FullyConnected(a, name="i", num_hidden=2), name="j", num_hidden=4)
    before = mx.sym.Activation(b, act_type="relu", name="act")
    return mx.sym.Group([net(a=before), net(a=before, name="renamed"), net])


def uncomposed(mx: Any) -> Any:
    return mx.sym.FullyConnected(num_hidden=3, name="z")


def uncomposed_variadic(mx: Any) -> Any:
    return mx.sym.Concat(num_args=2, name="z")


def random(mx: Any) -> Any:
    s = mx.sym
    results = [s.random.uniform(0, 1, shape=(2,)), s.random.normal(shape=(2, 3)), s.random_uniform(shape=(2,))]
    return s.Group([*results, s.uniform(shape=(2,))])


def aliases(mx: Any) -> Any:
    a, b, c = variables(mx)
    s = mx.sym
    results = [s.concat(a, b), s.flatten(a), s.cast(a, dtype="int8"), s.identity(a), s.stop_gradient(a), s.BlockGrad(a)]
    results += [
        s.MakeLoss(a),
        s.sum_axis(a, axis=1),
        s.broadcast_plus(a, b),
        s.elemwise_add(a, b),
        s.Reshape(a, shape=(1, 2)),
    ]
    results += [s.swapaxes(a, dim1=0, dim2=1), s.crop(a, begin=(0,), end=(1,)), s.softmax(a, axis=1), s.ones_like(a)]
    results += [s.LinearRegressionOutput(a, b, name="lro"), s.Softmax(a, b), s.LeakyReLU(a), s.where(a, b, c)]
    results += [s.LeakyReLU(a, act_type="prelu", name="pr"), s.dot(a, b, transpose_b=True), s.batch_dot(a, b)]
    results += [s.Embedding(a, input_dim=3, output_dim=2, name="emb"), s.stack(a, b, axis=1)]
    results += [s.slice(a, begin=(0, None), end=(1, 2)), s._internal._identity_with_attr_like_rhs(a, b)]
    return s.Group(results)


BUILDERS = {
    builder.__name__: builder
    for builder in (
        *(variable, mlp, batch_norm, batch_norm_outputs, convolution, several_outputs, scopes, operators, functions),
        *(methods, composed, uncomposed, uncomposed_variadic, random, aliases),
    )
}


def build(mx: Any, name: str) -> dict[str, Any]:
    """What `mx` makes of one builder, automatic names counted from 0."""
    with mx.name.NameManager():
        return graph_of(BUILDERS[name](mx))


if __name__ == "__main__":
    import mxnet

    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({name: build(mxnet, name) for name in BUILDERS}, file, indent=0)
        file.write("\n")
