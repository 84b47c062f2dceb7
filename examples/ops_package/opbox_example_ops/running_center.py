"""running_center: out = data - center, data (batch, feature), center (feature,) an auxiliary state of float32.

In training the batch's mean m is taken off and center = momentum * center + (1 - momentum) * m; otherwise the center of
all training is taken off.

gdata = gout - gout's mean over the batch in training, gout otherwise
"""

import numpy as np

from opbox_ops import Field, OpReq, Params, Slot, Temp, assign, backward_node, register, register_backward
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


@op.resources
def _(p, in_shapes, in_types, out_shapes, out_types):
    return [Temp((in_shapes[0][1],), np.float32)]


@op.gradient
def _(node, ograds):
    return backward_node("_backward_running_center", node, [ograds[0]])


@op.compute("cpu")
def _(p, ctx, inputs, req, outputs):
    data, center = inputs
    (mean,) = ctx.temp
    if ctx.is_train and len(data):
        np.mean(data, axis=0, dtype=np.float32, out=mean)
        center *= p.momentum
        center += (1 - p.momentum) * mean
    else:
        mean[...] = center
    assign(outputs[0], req[0], data - mean.astype(data.dtype))


@op.compute("gpu")
def _(p, ctx, inputs, req, outputs):
    data, center = inputs
    (mean,) = ctx.temp
    if ctx.is_train and len(data):
        mean[...] = data.mean(axis=0, dtype=np.float32)
        step = ctx.xp.ElementwiseKernel(
            "float32 mean, float32 momentum", "float32 center", "center += (1 - momentum) * (mean - center);", "center"
        )
        step(mean, p.momentum, center)
    else:
        mean[...] = center
    assign(outputs[0], req[0], data - mean.astype(data.dtype))


@backward.compute()
def _(p, ctx, inputs, req, outputs):
    (gout,) = inputs
    if req[0] != OpReq.NULL:
        assign(outputs[0], req[0], gout - gout.mean(axis=0, keepdims=True) if ctx.is_train and len(gout) else gout)
