"""Writes networks that Gluon of MXNet 1.9.1 exports under its numpy semantics, with what they compute.

Run by MXNet's Python:

python tests/client/record_numpy_files.py tests/client/recorded/numpy_files.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def networks() -> dict[str, Any]:
    """The networks by name: each a function of F and x, of shape (2, 3)."""
    return {
        "arithmetic": lambda F, x: (x + 1) * x - x / 3 + 2 / (x + 2) - (1 - x) ** 2 + x % 2 + 2**x,
        "functions": lambda F, x: F.np.exp(-x) + F.np.sqrt(F.np.square(x)) + F.np.log1p(F.np.abs(x)) + F.np.tanh(x),
        "trigonometry": lambda F, x: F.np.sin(x) + F.np.cos(x) * F.np.arctan(x) + F.np.sinh(x) + F.np.radians(x),
        "two arrays": lambda F, x: F.np.maximum(x, x * x) - F.np.minimum(x, 0.5) + F.np.hypot(x, x + 1),
        "reductions": lambda F, x: F.np.sum(x) + F.np.mean(x, axis=0) * F.np.max(x) - F.np.min(x, axis=1).sum(),
        "comparisons": lambda F, x: (x > 0.5) * x + (x <= F.np.sum(x)) * 2.0,
        "shapes": lambda F, x: F.np.stack(
            [F.np.reshape(F.np.transpose(x), (2, 3)), F.npx.reshape(F.np.flip(x, 1), (-2, -1))]
        ),
        "joined": lambda F, x: F.np.concatenate([x, F.np.squeeze(F.np.expand_dims(x, 0))], axis=1),
        "products": lambda F, x: F.np.dot(x, F.np.transpose(x)),
        "attention": lambda F, x: F.np.matmul(
            F.npx.softmax(
                F.np.where(
                    F.np.tril(F.np.ones((2, 2))),
                    F.np.matmul(x, F.np.transpose(x)),
                    F.np.full_like(F.np.ones((2, 2)), -1e9),
                ),
                axis=-1,
            ),
            x,
        ),
        "heads": lambda F, x: F.np.einsum(
            "bqk,bkd->bqd", F.np.expand_dims(F.np.dot(x, F.np.transpose(x)), 0), F.np.expand_dims(x, 0)
        ),
        "contractions": lambda F, x: F.np.tensordot(x, x, axes=([1], [1])) + F.np.tensordot(x, F.np.transpose(x), 1),
        "selections": lambda F, x: F.np.where(x > 0.6, x, x * x) + F.np.where(x > 1, 1, 2),
        "lengths": lambda F, x: x / F.np.linalg.norm(x, axis=1, keepdims=True) + F.np.linalg.norm(x),
        "constants": lambda F, x: (
            x * F.np.arange(3)
            + F.np.ones((2, 3))
            + F.np.zeros((3,))
            + F.np.eye(2, 3, k=1)
            + F.np.full_like(x, 0.5) * F.np.zeros_like(x)
        ),
        "moved": lambda F, x: (
            F.np.roll(F.np.moveaxis(F.np.broadcast_to(x, (2, 2, 3)), 0, 2), 1, axis=0)
            + F.np.expand_dims(F.np.pad(x, ((0, 0), (0, 0))), 2)
        ),
        "stacks": lambda F, x: F.np.concatenate(
            [F.np.vstack([x, x]), F.np.pad(F.np.hstack([x, x]), ((1, 1), (0, 0)))[:, 3:]]
        ),
        "diagonals": lambda F, x: F.np.trace(x) + F.np.diag(x) + F.np.diagonal(x, offset=1) + F.np.average(x),
        "values": lambda F, x: (
            F.np.nan_to_num(F.np.log(x - 0.25)) * F.np.isfinite(x) + F.np.around(x, 1) + F.np.diff(x, axis=1).sum()
        ),
        "layers": lambda F, x: F.npx.softmax(F.npx.relu(x) + F.npx.sigmoid(x), axis=-1),
    }


if __name__ == "__main__":
    import mxnet as mx

    mx.npx.set_np()
    data = [[0.5, 1.25, 2.0], [0.25, 3.0, 0.75]]
    recorded = {}
    for name, body in networks().items():

        class Network(mx.gluon.HybridBlock):
            """The network."""

            body = staticmethod(body)

            def hybrid_forward(self, F: Any, x: Any) -> Any:
                return self.body(F, x)

        block = Network()
        block.hybridize()
        x = mx.np.array(data)
        x.attach_grad()
        with mx.autograd.record():
            out = block(x)
        out.backward()
        with tempfile.TemporaryDirectory() as folder:
            block.export(f"{folder}/net")
            text = Path(folder, "net-symbol.json").read_text()
        recorded[name] = {"json": text, "out": out.asnumpy().tolist(), "grad": x.grad.asnumpy().tolist()}
    Path(sys.argv[1]).write_text(json.dumps({"data": data, "networks": recorded}, indent=0) + "\n")
