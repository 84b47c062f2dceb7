"""What the workers of tests/training/test_several_workers.py do: functions that processes started anew import."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import opbox as mx
from opbox import dist
from opbox_service.commands import groups
from opbox_service.groups import BegunSum

SAMPLES, FEATURES, BATCH = 48, 8, 8


def network() -> Any:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=16, name="fc1")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def samples() -> tuple[Any, Any]:
    rng = np.random.RandomState(0)
    data = rng.randn(SAMPLES, FEATURES).astype("f")
    return data, (data[:, 0] > 0).astype("f")


def weights() -> dict[str, Any]:
    rng = np.random.RandomState(1)
    shapes = {"fc1_weight": (16, FEATURES), "fc1_bias": (16,), "fc2_weight": (3, 16), "fc2_bias": (3,)}
    return {name: mx.nd.array(rng.uniform(-0.5, 0.5, shape)) for name, shape in shapes.items()}


def digest(arrays: dict[str, Any]) -> str:
    return hashlib.sha256(b"".join(arrays[name].asnumpy().tobytes() for name in sorted(arrays))).hexdigest()


def train(optimizer: str, epochs: int) -> dict[str, Any]:
    """A worker's training: hashes of the weights after each epoch, requests after each step, and the weights."""
    kv = mx.kv.create("dist_sync")
    data, labels = samples()
    batches = mx.io.NDArrayIter(data[kv.rank :: kv.num_workers], labels[kv.rank :: kv.num_workers], BATCH)
    mod = mx.mod.Module(network())
    hashes: list[str] = []
    requests: list[int] = []
    mod.fit(
        batches,
        num_epoch=epochs,
        kvstore=kv,
        optimizer=optimizer,
        optimizer_params={"learning_rate": 0.1},
        # The others' are to have no effect.
        arg_params=weights() if kv.rank == 0 else None,
        aux_params={},
        allow_missing=True,
        epoch_end_callback=lambda epoch, symbol, arg, aux: hashes.append(digest(arg)),
        batch_end_callback=lambda param: requests.append(mx.cpu().session.requests),
    )
    kv.barrier()
    values = {name: value.asnumpy() for name, value in mod.get_params()[0].items()}
    return {"hashes": hashes, "requests": requests, "weights": values, "rescale": mod._optimizer.rescale_grad}


def train_large(least: int) -> tuple[str, int]:
    """Steps with 12 MB of gradients whose sums begin in backward from `least` bytes on: the weights' hash, and of how
    many sums that was so."""
    groups.MIN_BEGUN_BYTES = least
    begun: list[int] = []

    class Counted(BegunSum):
        def finish(self, check: Any) -> None:
            super().finish(check)
            begun.append(1)

    groups.BegunSum = Counted  # type: ignore[misc]
    kv = mx.kv.create("dist_sync")
    net = mx.sym.Variable("data")
    for layer in range(3):
        net = mx.sym.Activation(mx.sym.FullyConnected(net, num_hidden=1000, name=f"fc{layer}"), act_type="tanh")
    mod = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3, name="last"), name="softmax"))
    mod.bind([("data", (BATCH, 1000))], [("softmax_label", (BATCH,))])
    mx.random.seed(0)
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(kv, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    rng = np.random.RandomState(kv.rank)
    labels = mx.nd.array(rng.randint(0, 3, BATCH).astype("f"))
    batch = mx.io.DataBatch([mx.nd.array(rng.rand(BATCH, 1000))], [labels])
    for _ in range(4):
        mod.forward_backward(batch)
        mod.update()
    return digest(mod.get_params()[0]), len(begun)


def store() -> list[Any]:
    """What a store does by itself, as MXNet 1.9.1's does: values, sums and pulls."""
    kv = mx.kv.create("dist_device_sync")
    rows: list[Any] = [kv.type, kv.num_workers]
    out = mx.nd.zeros((2,))
    kv.init("a", mx.nd.ones((2,)) * (kv.rank + 3))
    kv.pull("a", out=out)
    rows.append(out.asnumpy().tolist())
    pushed = mx.nd.ones((2,)) * (kv.rank + 1)
    kv.push("a", [pushed, mx.nd.ones((2,), mx.cpu(1))])
    kv.pull("a", out=out)
    rows.append(out.asnumpy().tolist())
    kv.pushpull(["a"], [pushed], out=[out])
    rows.append(out.asnumpy().tolist())
    rows.append((pushed - kv.rank).asnumpy().tolist())
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    kv.push("a", mx.nd.ones((2,)))
    kv.pull("a", out=out)
    rows.append(out.asnumpy().tolist())
    kv.barrier()
    return rows


def lose_one(folder: str) -> list[int]:
    """Train four epochs, with a checkpoint after each; in the first attempt the second worker is killed in the third.

    Returns: this worker's rank, the number of workers, the attempt, and the epoch from which it went on.
    """
    kv = mx.kv.create("dist_sync")
    prefix = str(Path(folder) / "run")
    done = len(list(Path(folder).glob("run-*.params")))
    arg = mx.model.load_checkpoint(prefix, done)[1] if done else weights()
    data, labels = samples()
    batches = mx.io.NDArrayIter(data[kv.rank :: kv.num_workers], labels[kv.rank :: kv.num_workers], BATCH)

    def after_batch(param: Any) -> None:
        if dist.group().restart == 0 and kv.rank == 1 and (param.epoch, param.nbatch) == (2, 0):
            os.kill(os.getpid(), signal.SIGKILL)

    mod = mx.mod.Module(network())
    save = mx.callback.do_checkpoint(prefix)
    saving = [save] if kv.rank == 0 else []
    # The barrier says that the checkpoint is there before anybody goes on.
    ends = [*saving, lambda *args: kv.barrier()]
    mod.fit(
        batches,
        begin_epoch=done,
        num_epoch=4,
        kvstore=kv,
        arg_params=arg,
        aux_params={},
        batch_end_callback=after_batch,
        epoch_end_callback=ends,
    )
    return [kv.rank, kv.num_workers, dist.group().restart, done]


def fail_on_one() -> None:
    """The second worker raises an error while the others wait for it."""
    kv = mx.kv.create("dist_sync")
    kv.init("a", mx.nd.ones((2,)))
    if kv.rank == 1:
        raise ValueError("no such file")
    kv.push("a", mx.nd.ones((2,)))
    out = mx.nd.zeros((2,))
    kv.pull("a", out=out)
    out.asnumpy()
