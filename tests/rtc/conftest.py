"""Where `mx.rtc` runs in these tests: the engine in this process, and a live server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

TOKEN, RUN_ONLY = "everything-is-allowed", "only-running-is-allowed"


@contextlib.contextmanager
def serving(**settings: str) -> Iterator[str]:
    """The address of a server with two tokens, of which RUN_ONLY may not bring CUDA source."""
    tokens = [
        {"name": "ann", "token": TOKEN, "scopes": ["run", "upload-cuda", "upload-python"]},
        {"name": "bob", "token": RUN_ONLY, "scopes": ["run"]},
    ]
    environment = {**os.environ, "OPBOX_TOKENS": json.dumps(tokens), "OPBOX_URL": "", "OMP_NUM_THREADS": "1"}
    environment |= settings
    process = subprocess.Popen(
        [sys.executable, "-m", "opbox_service.serve", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        yield address[0]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """See `serving`."""
    with serving() as url:
        yield url


@pytest.fixture(params=["embedded", "server"])
def mx(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """opbox on the engine in this process, then on a server."""
    import opbox

    if request.param == "server":
        opbox.connect(request.getfixturevalue("server"), TOKEN)
    else:
        opbox.connection.use(None)
    yield opbox
    opbox.connection.use(None)
