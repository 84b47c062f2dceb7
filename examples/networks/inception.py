"""Branches as in Inception-v3 (Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016).

A stem, one block of each kind (mixed, reduced, factorised, expanded), and a classifier: every way in which that
network's branches part and join, at a size that a test can afford.
"""

from typing import Any

__all__ = ["build", "shapes"]


def _unit(mx: Any, x: Any, filters: int, kernel: tuple[int, int], name: str, **window: Any) -> Any:
    """Convolution, batch norm, ReLU."""
    x = mx.sym.Convolution(x, num_filter=filters, kernel=kernel, no_bias=True, name=f"{name}_conv2d", **window)
    x = mx.sym.BatchNorm(x, eps=0.001, fix_gamma=True, name=f"{name}_batchnorm")
    return mx.sym.Activation(x, act_type="relu", name=f"{name}_relu")


def _pool(mx: Any, x: Any, kind: str, name: str, stride: int = 1, pad: int = 1) -> Any:
    return mx.sym.Pooling(
        x, kernel=(3, 3), stride=(stride, stride), pad=(pad, pad), pool_type=kind, name=f"{name}_{kind}_pool"
    )


def _mixed(mx: Any, x: Any, width: int, name: str) -> Any:
    """1x1, 5x5, two 3x3, and pooled: joined along the channels."""
    one = _unit(mx, x, 2 * width, (1, 1), f"{name}_one")
    five = _unit(mx, x, width, (1, 1), f"{name}_five_reduce")
    five = _unit(mx, five, 2 * width, (5, 5), f"{name}_five", pad=(2, 2))
    three = _unit(mx, x, width, (1, 1), f"{name}_three_reduce")
    three = _unit(mx, three, 3 * width, (3, 3), f"{name}_three_1", pad=(1, 1))
    three = _unit(mx, three, 3 * width, (3, 3), f"{name}_three_2", pad=(1, 1))
    pooled = _unit(mx, _pool(mx, x, "avg", name), width, (1, 1), f"{name}_pooled")
    return mx.sym.Concat(one, five, three, pooled, name=f"{name}_concat")


def _reduced(mx: Any, x: Any, width: int, name: str) -> Any:
    """Half the height and width: a strided convolution beside a strided maximum."""
    three = _unit(mx, x, 2 * width, (3, 3), f"{name}_three", stride=(2, 2))
    return mx.sym.Concat(three, _pool(mx, x, "max", name, stride=2, pad=0), name=f"{name}_concat")


def _factorised(mx: Any, x: Any, width: int, name: str) -> Any:
    """A 7x7 window as 1x7 and 7x1."""
    one = _unit(mx, x, 2 * width, (1, 1), f"{name}_one")
    seven = _unit(mx, x, width, (1, 1), f"{name}_seven_reduce")
    seven = _unit(mx, seven, width, (1, 7), f"{name}_seven_1", pad=(0, 3))
    seven = _unit(mx, seven, 2 * width, (7, 1), f"{name}_seven_2", pad=(3, 0))
    pooled = _unit(mx, _pool(mx, x, "avg", name), 2 * width, (1, 1), f"{name}_pooled")
    return mx.sym.Concat(one, seven, pooled, name=f"{name}_concat")


def _expanded(mx: Any, x: Any, width: int, name: str) -> Any:
    """A branch that parts once more into 1x3 and 3x1."""
    one = _unit(mx, x, 2 * width, (1, 1), f"{name}_one")
    three = _unit(mx, x, 2 * width, (1, 1), f"{name}_three_reduce")
    wide = _unit(mx, three, 2 * width, (1, 3), f"{name}_wide", pad=(0, 1))
    high = _unit(mx, three, 2 * width, (3, 1), f"{name}_high", pad=(1, 0))
    pooled = _unit(mx, _pool(mx, x, "max", name), width, (1, 1), f"{name}_pooled")
    return mx.sym.Concat(one, wide, high, pooled, name=f"{name}_concat")


def build(mx: Any, num_classes: int = 10, width: int = 16) -> Any:
    """data (batch, 3, size, size), size at least 47, to (batch, num_classes)."""
    x = mx.sym.Variable("data")
    x = _unit(mx, x, width, (3, 3), "stem_1", stride=(2, 2))
    x = _unit(mx, x, 2 * width, (3, 3), "stem_2", pad=(1, 1))
    x = _pool(mx, x, "max", "stem", stride=2, pad=0)
    x = _mixed(mx, x, width, "mixed")
    x = _reduced(mx, x, 2 * width, "reduced")
    x = _factorised(mx, x, 2 * width, "factorised")
    x = _expanded(mx, x, 2 * width, "expanded")
    x = mx.sym.Pooling(x, kernel=(8, 8), global_pool=True, pool_type="avg", name="global_pool")
    x = mx.sym.FullyConnected(mx.sym.Flatten(x, name="flatten"), num_hidden=num_classes, name="fc1")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def shapes(batch: int = 2, size: int = 79) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs."""
    return {"data": (batch, 3, size, size)}
