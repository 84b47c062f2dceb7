"""_contrib_box_encode, _contrib_box_decode: boxes as offsets from anchors, and back (Girshick et al., 2014).

encode: anchors (b, n, 4) and refs (b, m, 4) in corners; samples, matches (b, n); means, stds (4,).
Where sample > 0.5, with r for refs[match]:
    targets = ((rx - ax) / aw, (ry - ay) / ah, log(rw / aw), log(rh / ah)), less means, over stds; masks = 1
and both are 0 elsewhere; targets, masks (b, n, 4).

decode: data (b, n, 4), anchors (1, n, 4) in `format`, out (b, n, 4) in corners:
    x = data0 std0 aw + ax        width = exp(min(data2 std2, clip)) aw        likewise y and height

Gradients are zero, as in MXNet.
"""

from __future__ import annotations

from ..compute import Arrays, OpContext, Outputs
from ..gradient import grad_zero
from ..infer import ShapeList, all_same_float
from ..params import Field, Float, NoParams, Params
from ..registry import register
from .geometry import BoxFormat, planes, to_center


class BoxDecodeParams(Params):
    std0: Float = Field(1.0, description="Factor on the offset of x.")
    std1: Float = Field(1.0, description="Factor on the offset of y.")
    std2: Float = Field(1.0, description="Factor on the logarithm of the width.")
    std3: Float = Field(1.0, description="Factor on the logarithm of the height.")
    clip: Float = Field(-1.0, description="Upper bound of the logarithms; none unless above 0.")
    format: BoxFormat = Field("center", description="Format of anchors.")


encode = register(
    "_contrib_box_encode",
    inputs=("samples", "matches", "anchors", "refs", "means", "stds"),
    outputs=("output0", "output1"),
    doc="Boxes as offsets from the anchors that they were matched to.",
)
decode = register(
    "_contrib_box_decode", BoxDecodeParams, inputs=("data", "anchors"), doc="Boxes from their offsets from anchors."
)
for _op in (encode, decode):
    _op.set_attr("FGradient", grad_zero)
    _op.infer_type(all_same_float)


@encode.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    for i in (0, 1):
        ins.rank(i, 2)
    for slots, i in ((ins, 2), (ins, 3), (outs, 0), (outs, 1)):
        slots.rank(i, 3)
    batch, count = (-1, -1)
    for _ in range(2):
        for slots, i in ((ins, 0), (ins, 1), (ins, 2), (outs, 0), (outs, 1)):
            tail = (4,) if slots is outs or i == 2 else ()
            shape = slots.merge(i, (batch, count, *tail))
            assert shape is not None
            batch, count = shape[:2]
        shape = ins.merge(3, (batch, -1, 4))
        assert shape is not None
        batch = shape[0]
    ins.merge(4, (4,))
    ins.merge(5, (4,))


@encode.compute(allocates="coordinates as planes")
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    samples, matches, anchors, refs, means, stds = inputs
    targets, masks = outputs
    xp = ctx.xp
    sampled = (samples > 0.5)[..., None]
    if masks is not None:
        masks[...] = sampled
    if targets is None or not targets.size:
        return
    if not refs.shape[1]:
        targets[...] = 0
        return
    rows = xp.where(sampled, matches[..., None], 0).astype(xp.int64)
    ax, ay, aw, ah = to_center(planes(anchors))
    rx, ry, rw, rh = to_center(planes(xp.take_along_axis(refs, rows, axis=1)))
    for i, offset in enumerate(((rx - ax) / aw, (ry - ay) / ah, xp.log(rw / aw), xp.log(rh / ah))):
        targets[..., i] = xp.where(sampled[..., 0], (offset - means[i]) / stds[i], 0)


@decode.infer_shape
def _(p: BoxDecodeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.merge(0, outs.merge(0, ins.merge(0, (-1, -1, 4))))
    anchors = ins.merge(1, (1, data[1] if data is not None else -1, 4))
    assert anchors is not None
    ins.merge(0, outs.merge(0, (-1, anchors[1], 4)))


@decode.compute(allocates="coordinates as planes")
def _(p: BoxDecodeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, anchors = inputs
    (out,) = outputs
    if out is None:
        return
    xp = ctx.xp
    box = planes(anchors)
    center = to_center(box) if p.format == "corner" else box
    for axis, (shift, stretch) in enumerate(((p.std0, p.std2), (p.std1, p.std3))):
        middle = data[..., axis] * shift * center[axis + 2] + center[axis]
        scale = data[..., axis + 2] * stretch
        if p.clip > 0:
            xp.minimum(scale, p.clip, out=scale)
        half = xp.exp(scale, out=scale) * center[axis + 2] / 2
        out[..., axis] = middle - half
        out[..., axis + 2] = middle + half
