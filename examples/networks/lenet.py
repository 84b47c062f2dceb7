"""LeNet for handwritten digits (LeCun et al., "Gradient-based learning applied to document recognition", 1998)."""

from typing import Any

__all__ = ["build", "shapes"]


def build(mx: Any, num_classes: int = 10) -> Any:
    """data (batch, 1, height, width) through two convolutions and two dense layers to (batch, num_classes)."""
    x = mx.sym.Variable("data")
    for number, filters in ((1, 20), (2, 50)):
        x = mx.sym.Convolution(x, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        x = mx.sym.Activation(x, act_type="tanh", name=f"tanh{number}")
        x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{number}")
    x = mx.sym.Flatten(x, name="flatten")
    x = mx.sym.FullyConnected(x, num_hidden=500, name="fc1")
    x = mx.sym.Activation(x, act_type="tanh", name="tanh3")
    x = mx.sym.FullyConnected(x, num_hidden=num_classes, name="fc2")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def shapes(batch: int = 100, size: int = 28) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs."""
    return {"data": (batch, 1, size, size)}
