"""Networks as MXNet symbol JSON, for benchmarks that give them to opbox and to MXNet alike."""

from __future__ import annotations

from typing import Any

__all__ = ["Builder", "lenet", "lstm", "mlp", "pointwise", "resnet50", "vgg16"]


class Builder:
    """MXNet symbol JSON, put together node by node."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def variable(self, name: str) -> int:
        self.nodes.append({"op": "null", "name": name, "inputs": []})
        return len(self.nodes) - 1

    def call(
        self, op: str, name: str, *inputs: int | tuple[int, int], params: str = "", aux: str = "", **attrs: Any
    ) -> int:
        """A call on `inputs`, then on fresh variables for the names in `params` and `aux`."""
        sources = [[i, 0, 0] if isinstance(i, int) else [*i, 0] for i in inputs]
        sources += [[self.variable(f"{name}_{param}"), 0, 0] for param in params.split()]
        sources += [[self.variable(f"{name}_{state}"), 0, 1] for state in aux.split()]
        texts = {key: str(value) for key, value in attrs.items()}
        self.nodes.append({"op": op, "name": name, "attrs": texts, "inputs": sources})
        return len(self.nodes) - 1

    def batch_norm(self, name: str, data: int) -> int:
        return self.call(
            "BatchNorm", name, data, params="gamma beta", aux="moving_mean moving_var", fix_gamma=False, eps=2e-5
        )

    def convolution(self, name: str, data: int, filters: int, kernel: int, stride: int = 1, bias: bool = False) -> int:
        pad = kernel // 2
        return self.call(
            "Convolution",
            name,
            data,
            params="weight bias" if bias else "weight",
            num_filter=filters,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            pad=(pad, pad),
            no_bias=not bias,
        )

    def relu(self, name: str, data: int) -> int:
        return self.call("Activation", name, data, act_type="relu")

    def dense(self, name: str, data: int, hidden: int) -> int:
        return self.call("FullyConnected", name, data, params="weight bias", num_hidden=hidden)

    def finish(self, head: int) -> dict[str, Any]:
        last = self.call("SoftmaxOutput", "softmax", head, params="label")
        return {
            "nodes": self.nodes,
            "arg_nodes": [i for i, node in enumerate(self.nodes) if node["op"] == "null"],
            "node_row_ptr": [],
            "heads": [[last, 0, 0]],
            "attrs": {"mxnet_version": ["int", 10901]},
        }


def resnet50() -> dict[str, Any]:
    """He et al., Identity Mappings in Deep Residual Networks, 2016: units of BN-ReLU-convolution, 1x1, 3x3, 1x1."""
    b = Builder()
    x = b.convolution("conv0", b.variable("data"), 64, 7, 2)
    x = b.relu("relu0", b.batch_norm("bn0", x))
    x = b.call("Pooling", "pool0", x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for stage, (units, filters) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
        for unit in range(units):
            name, stride = f"stage{stage}_unit{unit}", 2 if stage and not unit else 1
            y = first = b.relu(f"{name}_relu1", b.batch_norm(f"{name}_bn1", x))
            y = b.convolution(f"{name}_conv1", y, filters // 4, 1)
            y = b.relu(f"{name}_relu2", b.batch_norm(f"{name}_bn2", y))
            y = b.convolution(f"{name}_conv2", y, filters // 4, 3, stride)
            y = b.relu(f"{name}_relu3", b.batch_norm(f"{name}_bn3", y))
            y = b.convolution(f"{name}_conv3", y, filters, 1)
            shortcut = x if unit else b.convolution(f"{name}_sc", first, filters, 1, stride)
            x = b.call("elemwise_add", f"{name}_plus", y, shortcut)
    x = b.relu("relu1", b.batch_norm("bn1", x))
    x = b.call("Pooling", "pool1", x, kernel=(7, 7), pool_type="avg", global_pool=True)
    return b.finish(b.dense("fc1", b.call("Flatten", "flat", x), 1000))


def vgg16() -> dict[str, Any]:
    """Simonyan and Zisserman, 2014, configuration D, without dropout."""
    b = Builder()
    x = b.variable("data")
    for block, (layers, filters) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for layer in range(layers):
            x = b.relu(f"relu{block}_{layer}", b.convolution(f"conv{block}_{layer}", x, filters, 3, bias=True))
        x = b.call("Pooling", f"pool{block}", x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = b.call("Flatten", "flat", x)
    for i in (6, 7):
        x = b.relu(f"relu{i}", b.dense(f"fc{i}", x, 4096))
    return b.finish(b.dense("fc8", x, 1000))


def lstm(steps: int = 35, hidden: int = 256) -> dict[str, Any]:
    """One LSTM layer unrolled over `steps`, its last state classified; weights shared by all steps."""
    b = Builder()
    data = b.call("SliceChannel", "steps", b.variable("data"), num_outputs=steps, axis=1, squeeze_axis=1)
    shared = {name: b.variable(name) for name in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")}
    h, c = b.variable("h"), b.variable("c")
    for t in range(steps):
        i2h = b.call(
            "FullyConnected", f"i2h{t}", (data, t), shared["i2h_weight"], shared["i2h_bias"], num_hidden=4 * hidden
        )
        h2h = b.call("FullyConnected", f"h2h{t}", h, shared["h2h_weight"], shared["h2h_bias"], num_hidden=4 * hidden)
        gates = b.call("SliceChannel", f"gates{t}", b.call("elemwise_add", f"sum{t}", i2h, h2h), num_outputs=4, axis=1)
        kinds = ("sigmoid", "sigmoid", "tanh", "sigmoid")
        i, f, g, o = (b.call("Activation", f"gate{t}_{k}", (gates, k), act_type=a) for k, a in enumerate(kinds))
        c = b.call(
            "elemwise_add", f"c{t}", b.call("elemwise_mul", f"keep{t}", f, c), b.call("elemwise_mul", f"new{t}", i, g)
        )
        h = b.call("elemwise_mul", f"h{t}", o, b.call("Activation", f"squash{t}", c, act_type="tanh"))
    return b.finish(b.dense("out", h, 1000))


def mlp() -> dict[str, Any]:
    """784-128-64-10 with ReLU."""
    b = Builder()
    x = b.relu("relu1", b.dense("fc1", b.variable("data"), 128))
    x = b.relu("relu2", b.dense("fc2", x, 64))
    return b.finish(b.dense("fc3", x, 10))


def lenet() -> dict[str, Any]:
    """LeNet with tanh, as MXNet's examples have it, for images of 28 by 28."""
    b = Builder()
    x = b.variable("data")
    for i, filters in enumerate((20, 50), 1):
        x = b.call("Convolution", f"conv{i}", x, params="weight bias", kernel=(5, 5), num_filter=filters)
        x = b.call("Activation", f"tanh{i}", x, act_type="tanh")
        x = b.call("Pooling", f"pool{i}", x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = b.dense("fc1", b.call("Flatten", "flat", x), 500)
    return b.finish(b.dense("fc2", b.call("Activation", "tanh3", x, act_type="tanh"), 10))


def pointwise() -> dict[str, Any]:
    """1,000 elementwise nodes in a row, each on (batch, 1024), then classes."""
    b = Builder()
    x = first = b.variable("data")
    for i in range(250):
        x = b.call("elemwise_mul", f"mul{i}", b.call("Activation", f"tanh{i}", x, act_type="tanh"), first)
        x = b.relu(f"relu{i}", b.call("elemwise_add", f"add{i}", x, first))
    return b.finish(b.dense("fc", x, 10))
