"""VGG-16 (Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", 2015)."""

from collections.abc import Sequence
from typing import Any

__all__ = ["VGG16", "build", "shapes"]

VGG16 = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


def build(
    mx: Any,
    num_classes: int = 1000,
    stages: Sequence[tuple[int, int]] = VGG16,
    hidden: int = 4096,
    drop: float = 0.5,
    act_type: str = "relu",
) -> Any:
    """data (batch, 3, height, width), both divisible by 32, to (batch, num_classes)."""
    x = mx.sym.Variable("data")
    for stage, (count, filters) in enumerate(stages, 1):
        for number in range(1, count + 1):
            name = f"{stage}_{number}"
            x = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=f"conv{name}")
            x = mx.sym.Activation(x, act_type=act_type, name=f"{act_type}{name}")
        x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{stage}")
    x = mx.sym.Flatten(x, name="flatten")
    for number in (6, 7):
        x = mx.sym.FullyConnected(x, num_hidden=hidden, name=f"fc{number}")
        x = mx.sym.Activation(x, act_type=act_type, name=f"{act_type}{number}")
        if drop:
            x = mx.sym.Dropout(x, p=drop, name=f"drop{number}")
    x = mx.sym.FullyConnected(x, num_hidden=num_classes, name="fc8")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def shapes(batch: int = 1, size: int = 224) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs."""
    return {"data": (batch, 3, size, size)}
