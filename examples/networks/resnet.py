"""ResNet in the pre-activation form: with bottleneck units as ResNet-50, or with basic ones as ResNet-18.

He et al., "Identity mappings in deep residual networks", 2016. A bottleneck unit has three convolutions, a basic one
two, and there are two layers more: bottleneck units (3, 4, 6, 3) make ResNet-50, basic ones (2, 2, 2, 2) ResNet-18.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["RESNET18", "RESNET50", "build", "shapes"]

RESNET18 = (2, 2, 2, 2)
RESNET50 = (3, 4, 6, 3)
EPS = 2e-5


def _norm_act(mx: Any, x: Any, act_type: str, name: str) -> Any:
    x = mx.sym.BatchNorm(x, fix_gamma=False, eps=EPS, momentum=0.9, name=f"{name}_bn")
    return mx.sym.Activation(x, act_type=act_type, name=f"{name}_{act_type}")


def _convolution(mx: Any, x: Any, filters: int, kernel: int, stride: int, name: str) -> Any:
    return mx.sym.Convolution(
        x,
        num_filter=filters,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        pad=(kernel // 2, kernel // 2),
        no_bias=True,
        name=name,
    )


def _bottleneck(mx: Any, x: Any, filters: int, stride: int, project: bool, act_type: str, name: str) -> Any:
    """A quarter of the filters inside; the shortcut leaves after the first activation when it is projected."""
    first = _norm_act(mx, x, act_type, f"{name}_1")
    y = _convolution(mx, first, filters // 4, 1, 1, f"{name}_conv1")
    y = _convolution(mx, _norm_act(mx, y, act_type, f"{name}_2"), filters // 4, 3, stride, f"{name}_conv2")
    y = _convolution(mx, _norm_act(mx, y, act_type, f"{name}_3"), filters, 1, 1, f"{name}_conv3")
    shortcut = _convolution(mx, first, filters, 1, stride, f"{name}_shortcut") if project else x
    return y + shortcut


def _basic(mx: Any, x: Any, filters: int, stride: int, project: bool, act_type: str, name: str) -> Any:
    """Two convolutions of 3 x 3; the shortcut leaves after the first activation when it is projected."""
    first = _norm_act(mx, x, act_type, f"{name}_1")
    y = _convolution(mx, first, filters, 3, stride, f"{name}_conv1")
    y = _convolution(mx, _norm_act(mx, y, act_type, f"{name}_2"), filters, 3, 1, f"{name}_conv2")
    shortcut = _convolution(mx, first, filters, 1, stride, f"{name}_shortcut") if project else x
    return y + shortcut


def build(
    mx: Any,
    num_classes: int = 1000,
    units: Sequence[int] = RESNET50,
    width: int = 64,
    act_type: str = "relu",
    bottleneck: bool = True,
) -> Any:
    """data (batch, channels, height, width) to (batch, num_classes).

    The last stage has 32 times `width` channels with bottleneck units, 8 times with basic ones.
    """
    x = mx.sym.Variable("data")
    x = mx.sym.BatchNorm(x, fix_gamma=True, eps=EPS, momentum=0.9, name="data_bn")
    x = _norm_act(mx, _convolution(mx, x, width, 7, 2, "conv0"), act_type, "conv0")
    x = mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name="pool0")
    for stage, count in enumerate(units, 1):
        for unit in range(1, count + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            filters, name = width * 2 ** (stage + 1 if bottleneck else stage - 1), f"stage{stage}_unit{unit}"
            project = unit == 1 and (bottleneck or stage > 1)
            x = (_bottleneck if bottleneck else _basic)(mx, x, filters, stride, project, act_type, name)
    x = mx.sym.Pooling(
        _norm_act(mx, x, act_type, "last"), global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1"
    )
    x = mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=num_classes, name="fc1")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def shapes(batch: int = 1, size: int = 224) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs."""
    return {"data": (batch, 3, size, size)}
