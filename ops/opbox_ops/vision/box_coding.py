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

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_zero
from ..index.positions import checked, take_rows
from ..infer import ShapeList, all_same_float, size_of
from ..params import Field, Float, NoParams, Params
from ..registry import register
from .geometry import BoxFormat, write_center


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


def _encode_temps(p: NoParams, call: CallSpec) -> list[Temp]:
    """Temporaries: a mask of sampled anchors, indices of their rows in refs, these rows, four numbers of an axis."""
    count, dtype = size_of(call.inputs[0].shape), call.inputs[0].dtype
    return [Temp((count,), "bool"), Temp((count,), "int64"), Temp((count, 4), dtype), Temp((4, count), dtype)]


@encode.compute(temps=_encode_temps)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    samples, matches, anchors, refs, means, stds = inputs
    (targets, masks), (sampled, rows, boxes, (middle, extent, offset, size)) = outputs, ctx.temp
    xp, (batch, count) = ctx.xp, samples.shape
    xp.greater(samples.reshape(-1), 0.5, out=sampled)
    if masks is not None:
        masks[...] = sampled.reshape(batch, count, 1)
    if targets is None or not targets.size:
        return
    targets[...] = 0
    if not refs.shape[1]:
        return
    rows.fill(0)
    xp.copyto(rows, matches.reshape(-1), where=sampled, casting="unsafe")
    checked(xp, rows, -refs.shape[1], refs.shape[1], "matches")
    xp.remainder(rows, refs.shape[1], out=rows)
    for image, part in enumerate(rows.reshape(batch, count)):
        part += image * refs.shape[1]
    take_rows(xp, refs.reshape(-1, 4), rows, boxes)
    anchors, targets = anchors.reshape(-1, 4), targets.reshape(-1, 4)
    for axis in (0, 1):
        write_center(xp, boxes[:, axis], boxes[:, axis + 2], offset, size)
        write_center(xp, anchors[:, axis], anchors[:, axis + 2], middle, extent)
        offset -= middle
        offset /= extent
        size /= extent
        xp.log(size, out=size)
        for i, target in ((axis, offset), (axis + 2, size)):
            target -= means[i]
            target /= stds[i]
            xp.copyto(targets[:, i], target, where=sampled)


@decode.infer_shape
def _(p: BoxDecodeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.merge(0, outs.merge(0, ins.merge(0, (-1, -1, 4))))
    anchors = ins.merge(1, (1, data[1] if data is not None else -1, 4))
    assert anchors is not None
    ins.merge(0, outs.merge(0, (-1, anchors[1], 4)))


def _decode_temps(p: BoxDecodeParams, call: CallSpec) -> list[Temp]:
    """Middles and extents of the anchors along an axis, and of the boxes."""
    (data, anchors), dtype = call.inputs, call.outputs[0].dtype
    return [Temp((2, *anchors.shape[:2]), dtype), Temp((2, *data.shape[:2]), dtype)]


@decode.compute(temps=_decode_temps)
def _(p: BoxDecodeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data, anchors), (out,) = inputs, outputs
    if out is None:
        return
    xp, (sides, (middle, scale)) = ctx.xp, ctx.temp
    for axis, (shift, stretch) in enumerate(((p.std0, p.std2), (p.std1, p.std3))):
        center, extent = anchors[..., axis], anchors[..., axis + 2]
        if p.format == "corner":
            write_center(xp, center, extent, *sides)
            center, extent = sides
        xp.multiply(data[..., axis], shift, out=middle)
        middle *= extent
        middle += center
        xp.multiply(data[..., axis + 2], stretch, out=scale)
        if p.clip > 0:
            xp.minimum(scale, p.clip, out=scale)
        xp.exp(scale, out=scale)
        scale *= extent
        scale /= 2
        xp.subtract(middle, scale, out=out[..., axis])
        xp.add(middle, scale, out=out[..., axis + 2])
