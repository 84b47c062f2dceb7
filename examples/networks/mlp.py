"""A multilayer perceptron with a softmax loss."""

from collections.abc import Sequence
from typing import Any

__all__ = ["build", "shapes"]


def build(mx: Any, num_classes: int = 10, hidden: Sequence[int] = (128, 64)) -> Any:
    """data (batch, features) through fully connected layers and ReLU to (batch, num_classes)."""
    x = mx.sym.Variable("data")
    for number, width in enumerate(hidden, 1):
        x = mx.sym.FullyConnected(x, num_hidden=width, name=f"fc{number}")
        x = mx.sym.Activation(x, act_type="relu", name=f"relu{number}")
    x = mx.sym.FullyConnected(x, num_hidden=num_classes, name=f"fc{len(hidden) + 1}")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def shapes(batch: int = 128, features: int = 784) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs."""
    return {"data": (batch, features)}
