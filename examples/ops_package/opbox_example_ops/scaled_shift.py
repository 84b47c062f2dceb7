"""scaled_shift: out = scale * data + shift[:, None, None], data (batch, channel, height, width), shift (channel,).

gdata = scale * gout        gshift = gout summed over batch, height and width
"""

from opbox_ops import Field, Params, backward_node, register, register_backward
from opbox_ops.params import Float

lint_cases = {
    "scaled_shift": [
        {"data": (2, 3, 4, 5), "params": {"scale": 2.5}},
        {"data": (2, 3, 1, 1)},
    ]
}


class ScaledShiftParams(Params):
    scale: Float = Field(1.0, description="Factor on data.")


op = register(
    "scaled_shift", ScaledShiftParams, inputs=("data", "shift"), doc="A factor, and a shift for each channel."
)
op.inplace((0, 0))
backward = register_backward("_backward_scaled_shift", ScaledShiftParams, outputs=("data", "shift"))
backward.inplace((0, 0))


@op.infer_shape
def _(p, ins, outs):
    ins.rank(0, 4)
    shape = outs.merge(0, ins[0])
    shape = ins.merge(0, shape)
    channels = ins.merge(1, None if shape is None else (shape[1],))
    if shape is not None and channels is not None:
        # The other way about: what is known of shift tells of data.
        outs.merge(0, ins.merge(0, (shape[0], channels[0], *shape[2:])))


@op.gradient
def _(node, ograds):
    return backward_node("_backward_scaled_shift", node, [ograds[0]])


@op.compute()
def _(p, ctx, inputs, outputs):
    (data, shift), (out,) = inputs, outputs
    ctx.xp.multiply(data, p.scale, out=out)
    ctx.xp.add(out, shift[:, None, None], out=out)


@backward.compute()
def _(p, ctx, inputs, outputs):
    (gout,), (gdata, gshift) = inputs, outputs
    # The sum first: the other gradient may be written over gout.
    if gshift is not None:  # None where nobody wants that gradient
        ctx.xp.sum(gout, axis=(0, 2, 3), out=gshift)
    if gdata is not None:
        ctx.xp.multiply(gout, p.scale, out=gdata)
