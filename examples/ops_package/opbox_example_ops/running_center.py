"""running_center: out = data - center, data (batch, feature), center (feature,) an auxiliary state of float32.

In training the batch's mean m is taken off and center = momentum * center + (1 - momentum) * m; otherwise the center of
all training is taken off.

gdata = gout - gout's mean over the batch in training, gout otherwise
"""

import numpy as np

from opbox_ops import Field, Params, Slot, Temp, backward_node, register, register_backward
from opbox_ops.params import Float

lint_cases = {"running_center": [{"data": (4, 3)}, {"data": (2, 5), "params": {"momentum": 0.5}}]}


class RunningCenterParams(Params):
    momentum: Float = Field(0.9, ge=0, le=1, description="Weight of the old center.")


op = register(
    "running_center",
    RunningCenterParams,
    inputs=("data", Slot("center", aux=True)),
    doc="Takes off a moving average of each feature.",
)
backward = register_backward("_backward_running_center", RunningCenterParams, outputs=("data",))
# Any attribute can be attached, for a pass or a tool of one's own: opbox_ops.attribute("FCost") finds it.
op.set_attr("FCost", lambda p, in_shapes: 3 * in_shapes[0][0] * in_shapes[0][1])


@op.infer_shape
def _(p, ins, outs):
    ins.rank(0, 2)
    shape = outs.merge(0, ins.merge(0, outs[0]))
    ins.merge(1, None if shape is None else (shape[1],))


@op.infer_type
def _(p, ins, outs):
    outs.merge(0, ins.merge(0, outs[0]))
    ins.merge(1, np.dtype(np.float32))


@op.gradient
def _(node, ograds):
    return backward_node("_backward_running_center", node, [ograds[0]])


def two_of_features(p, call):
    return [Temp((call.inputs[0].shape[1],), np.float32)] * 2


@op.compute("cpu", temps=two_of_features)
def _(p, ctx, inputs, outputs):
    data, center = inputs
    mean, part = ctx.temp
    if ctx.is_train and len(data):
        np.mean(data, axis=0, dtype=np.float32, out=mean)
        np.multiply(mean, 1 - p.momentum, out=part)
        center *= p.momentum
        center += part
    else:
        mean[...] = center
    np.subtract(data, mean, out=outputs[0], casting="unsafe")


@op.compute("gpu", temps=two_of_features)
def _(p, ctx, inputs, outputs):
    data, center = inputs
    mean, _ = ctx.temp
    if ctx.is_train and len(data):
        ctx.xp.mean(data, axis=0, dtype=np.float32, out=mean)
        step = ctx.xp.ElementwiseKernel(
            "float32 mean, float32 momentum", "float32 center", "center += (1 - momentum) * (mean - center);", "center"
        )
        step(mean, p.momentum, center)
    else:
        mean[...] = center
    ctx.xp.subtract(data, mean, out=outputs[0], casting="unsafe")


@backward.compute(temps=lambda p, call: [Temp((1, call.inputs[0].shape[1]), call.inputs[0].dtype)])
def _(p, ctx, inputs, outputs):
    (gout,), (gdata,), (mean,) = inputs, outputs, ctx.temp
    if ctx.is_train and len(gout):
        ctx.xp.mean(gout, axis=0, keepdims=True, out=mean)
        ctx.xp.subtract(gout, mean, out=gdata)
    else:
        gdata[...] = gout
