"""Triton's perf_analyzer measures a model: by HTTP, by gRPC and by a stream, with and without batching."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.contract.live import TOKENS, Live
from tests.models.conftest import address_of
from tests.models.folders import FEATURES

ROOT = Path(__file__).parents[2] / ".perf-analyzer"
PROGRAM = ROOT / "site/bin/perf_analyzer"
LIBRARIES = (ROOT / "usr/lib/x86_64-linux-gnu", ROOT / "site/nvidia/cuda_runtime/lib")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not (ROOT / ".ready").exists(), reason="no perf_analyzer in .perf-analyzer: make perf-analyzer"),
]

# A window is 50 requests, and any is steady: what is tested is not how fast this machine is today.
WINDOWS = "--measurement-mode count_windows --measurement-request-count 50 --stability-percentage 999 --max-trials 3"


@pytest.fixture(scope="module")
def address(server: Live) -> str:
    return address_of(server)


@pytest.mark.parametrize("model", ["plain", "batched"])
@pytest.mark.parametrize("way", ["http", "grpc", "stream"])
def test_it_measures_a_model(server: Live, address: str, way: str, model: str) -> None:
    url = server.url.removeprefix("http://") if way == "http" else address
    # It sends all that stands behind the colon, and a value of gRPC does not begin with a space.
    options = ["-m", model, "-u", url, "-i", "http" if way == "http" else "grpc", *WINDOWS.split()]
    options += ["-H", f"authorization:Bearer {TOKENS['ann']}"]
    if way == "stream":
        options += ["--async", "--streaming"]
    if model == "plain":  # its batch axis varies as any other: it has no max_batch_size
        options += ["--shape", f"data:1,{FEATURES}"]
    else:
        options += ["-b", "4", "--concurrency-range", "1:3:2"]
    done = subprocess.run(
        [PROGRAM, *options],
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, LIBRARIES))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    figures = [int(figure) for figure in re.findall(r"Successful request count: (\d+)", done.stdout)]
    assert len(figures) == (1 if model == "plain" else 2), done.stdout
    assert min(figures) >= 50
    assert re.search(r"Avg request latency: \d+ usec \(overhead \d+ usec \+ queue \d+ usec \+ compute", done.stdout)
