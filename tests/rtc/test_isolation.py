"""A kernel that crashes or never ends takes its own session along, within its deadline, and no other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from opbox.context import cpu
from opbox.http import HttpTransport
from opbox.ndarray.array import from_host
from opbox.rtc import CudaModule
from opbox.session import Session
from opbox_protocol.errors import MXNetError

from .conftest import TOKEN, serving

pytestmark = pytest.mark.compiler

SOURCES = {
    "endless": ('extern "C" __global__ void endless(float *x) { volatile int i = 0; while (i == 0) {} }', "3 s"),
    "crash": ('extern "C" __global__ void crash(float *x) { __builtin_trap(); }', "ended|gone|killed"),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(OPBOX_CODE_DEADLINE_S="3") as address:
        yield address


@pytest.mark.parametrize("name", SOURCES)
def test_only_its_own_session_ends(url: str, name: str) -> None:
    transport = HttpTransport(url, TOKEN)
    bad, good = Session(transport, "cpu"), Session(transport, "cpu")
    try:
        array = from_host(np.arange(3, dtype=np.float32), good)
        x = from_host(np.ones(4, np.float32), bad)
        source, says = SOURCES[name]
        begun = time.monotonic()
        CudaModule(source).get_kernel(name, "float *x").launch([x], cpu(), (1, 1, 1), (4, 1, 1))
        with pytest.raises(MXNetError, match=says):
            x.asnumpy()
        assert time.monotonic() - begun < 30
        assert (array + 1).asnumpy().tolist() == [1, 2, 3]
        fresh = Session(transport, "cpu")
        assert from_host(np.ones(2, np.float32), fresh).asnumpy().tolist() == [1, 1]
        fresh.close()
    finally:
        for session in (bad, good):
            session.close()
        transport.close()
