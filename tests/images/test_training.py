"""Training from the image iterators, embedded and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from tests.contract.live import TOKENS, Live

from .cases import FILES


@pytest.fixture(params=["embedded", "http"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> Iterator[None]:
    """The engine in use."""
    monkeypatch.delenv("OPBOX_URL", raising=False)
    live = Live("none", tmp_path_factory.mktemp("images")) if request.param == "http" else None
    connection.use(HttpTransport(live.url, TOKENS["ann"]) if live else None)
    yield
    connection.use(None)
    assert live is None or live.stop() == 0


def network() -> Any:
    net = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=10, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


RECORD_ITER = {
    "path_imgrec": str(FILES / "colour.rec"), "data_shape": (3, 12, 12), "batch_size": 5, "scale": 1 / 255,
}  # fmt: skip


def image_iter() -> Any:
    augmenters = [*mx.image.CreateAugmenter((3, 12, 12)), lambda image: image / 255]
    index = str(FILES / "colour.idx")
    return mx.image.ImageIter(
        5, (3, 12, 12), path_imgrec=RECORD_ITER["path_imgrec"], path_imgidx=index, aug_list=augmenters
    )


@pytest.mark.parametrize(
    "make", [lambda: mx.io.ImageRecordIter(**RECORD_ITER), image_iter], ids=["records", "ImageIter"]
)
def test_images_are_learnt_from(engine: None, make: Any) -> None:
    mx.random.seed(0)
    iterator, module, metric = make(), mx.mod.Module(network()), mx.metric.create("acc")
    module.fit(iterator, num_epoch=12, eval_metric=metric, optimizer="adam", initializer=mx.init.Xavier())
    assert module.score(iterator, "acc")[0][1] > 0.9  # ten images, ten classes


def test_a_step_on_records_is_one_request(engine: None) -> None:
    iterator, module = mx.io.ImageRecordIter(**RECORD_ITER), mx.mod.Module(network())
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params()
    module.init_optimizer(optimizer="sgd")
    session = mx.current_context().session
    module.forward_backward(next(iterator))
    module.update()
    module.get_outputs()[0].wait_to_read()
    before, steps = session.requests, 0
    for _ in range(4):
        iterator.reset()
        for batch in iterator:
            module.forward_backward(batch)
            module.update()
            steps += 1
    session.flush()
    assert session.requests - before == steps
    assert np.isfinite(module.get_outputs()[0].asnumpy()).all()
