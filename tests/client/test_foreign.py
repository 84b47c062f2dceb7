"""Arrays of other libraries go in as they are, and NDArrays go out: numpy's protocol, DLPack, torch, pandas."""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import opbox as mx

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
NUMBERED = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


class Elsewhere:
    """An array that only speaks DLPack, as those of a library that nobody here has."""

    def __init__(self, values: np.ndarray, device: int = 1) -> None:
        self.values = values
        self.device = device
        self.shape = values.shape

    def __dlpack__(self, **wishes: Any) -> Any:
        return self.values.__dlpack__(**wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


def installed_torch() -> Any:
    """torch; where it is missing a test is skipped, or fails where `make test-torch` has asked for it."""
    if os.environ.get("OPBOX_TEST_REQUIRE_TORCH") == "1":
        return importlib.import_module("torch")
    return pytest.importorskip("torch", reason="torch is not installed: make test-torch")


def torch_tensors() -> list[Any]:
    torch = installed_torch()
    plain = torch.from_numpy(VALUES.copy())
    return [plain, plain.clone().requires_grad_(), plain.to(torch.bfloat16), plain.double(), plain.T.contiguous().T]


def sources() -> dict[str, Any]:
    return {
        "numpy": VALUES,
        "fortran": np.asfortranarray(VALUES),
        "frame": pd.DataFrame(VALUES, columns=list("abc")),
        "frame of two types": pd.DataFrame({"a": [0, 3], "b": [1.0, 4.0], "c": [2, 5]}),
        "dlpack": Elsewhere(VALUES),
        "dlpack on another device": Elsewhere(VALUES, device=2),
        "read only": np.broadcast_to(VALUES, (2, 3)),
    }


def fed(source: Any) -> None:
    """Try every place that takes arrays."""
    np.testing.assert_array_equal(mx.nd.array(source).asnumpy(), VALUES)
    assert mx.nd.array(source).dtype == np.float32
    target = mx.nd.zeros((2, 3))
    target[:] = source
    np.testing.assert_array_equal(target.asnumpy(), VALUES)
    (_, held_values), *_ = mx.io.NDArrayIter(source, np.zeros(2), batch_size=2).data
    np.testing.assert_array_equal(held_values.asnumpy(), VALUES)
    net = mx.sym.Variable("data") * 2
    executor = net.simple_bind(mx.cpu(), data=(2, 3))
    np.testing.assert_array_equal(executor.forward(data=source)[0].asnumpy(), VALUES * 2)
    module = mx.mod.Module(net, label_names=None)
    module.bind([("data", (2, 3))], for_training=False)
    module.init_params()
    np.testing.assert_array_equal(module.predict(source).asnumpy(), VALUES * 2)
    module.forward(mx.io.DataBatch([source]))
    np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), VALUES * 2)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("name", [name for name in sources() if "device" not in name])
def test_arrays_are_fed_as_they_are(name: str) -> None:
    fed(sources()[name])


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("number", range(5))
def test_tensors_of_torch_are_fed_as_they_are(number: int) -> None:
    fed(torch_tensors()[number])


@pytest.mark.usefixtures("embedded")
def test_torch_reads_arrays() -> None:
    torch = installed_torch()
    array = mx.nd.array(VALUES)
    np.testing.assert_array_equal(torch.from_dlpack(array).numpy(), VALUES)
    np.testing.assert_array_equal(torch.utils.dlpack.from_dlpack(array.to_dlpack_for_read()).numpy(), VALUES)
    back = mx.nd.from_dlpack(torch.utils.dlpack.to_dlpack(torch.arange(3)))
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back.asnumpy(), [0, 1, 2])


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", NUMBERED)
def test_dlpack_both_ways(dtype: str) -> None:
    array = mx.nd.array(VALUES, dtype=dtype)
    values = np.from_dlpack(array)
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, VALUES)
    for source in (
        values,
        Elsewhere(VALUES.astype(dtype)),
        values.__dlpack__(),
        mx.nd.to_dlpack_for_read(array),
        array,
    ):
        back = mx.nd.from_dlpack(source)
        assert back.dtype == np.dtype(dtype).type
        np.testing.assert_array_equal(back.asnumpy(), VALUES)
    assert array.__dlpack_device__() == (1, 0)


@pytest.mark.usefixtures("engine")
def test_a_copy_by_dlpack_is_a_copy() -> None:
    array = mx.nd.array(VALUES)
    np.from_dlpack(array, copy=True)[:] = 7
    np.testing.assert_array_equal(array.asnumpy(), VALUES)


@pytest.mark.usefixtures("embedded")
def test_numpys_protocol() -> None:
    array = mx.nd.array(VALUES)
    np.testing.assert_array_equal(np.asarray(array), VALUES)
    assert np.asarray(array, dtype=np.float64).dtype == np.float64
    assert np.array(array, copy=True).dtype == np.float32
    with pytest.raises(ValueError, match="expected leave to copy, got copy=False"):
        np.array(array, copy=False)


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mx.nd.from_dlpack(3), TypeError, "expected an array with __dlpack__ or a capsule, got int"),
        (lambda: mx.nd.from_dlpack(np.array(["a"])), TypeError, "from_dlpack: ndarray: "),
        (lambda: mx.nd.ones(2).__dlpack__(copy=False), BufferError, "expected leave to copy, got copy=False"),
        (
            lambda: mx.nd.ones(2).__dlpack__(dl_device=(2, 0)),
            BufferError,
            "expected device (1, 0), the CPU, got (2, 0)",
        ),
        (lambda: np.from_dlpack(mx.nd.ones(2, dtype="bfloat16")), BufferError, "got bfloat16: cast it with astype"),
        (
            lambda: mx.io.NDArrayIter(pd.DataFrame({"a": ["x"]})),
            TypeError,
            "data: expected numbers, got 'x' among them",
        ),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()
