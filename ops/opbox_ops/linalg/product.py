"""Writing a matrix product as `req` says."""

from __future__ import annotations

from typing import Any

from ..compute import Array, OpReq, assign

__all__ = ["product"]


def product(xp: Any, a: Array, b: Array, req: OpReq, out: Array) -> None:
    """out = a @ b, straight into `out` where it can be; float16 and bfloat16 in float32."""
    if not req:
        return
    if out.dtype.char == "e" or out.dtype.kind == "V":
        assign(out, req, a.astype("float32") @ b.astype("float32"))
    elif req != OpReq.ADD:
        xp.matmul(a, b, out=out)
    else:
        assign(out, req, a @ b)
