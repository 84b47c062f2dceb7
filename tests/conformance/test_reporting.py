"""The report of drawn calls is kept whole when a run is spread over processes. Needs no MXNet."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .reporting import write


def test_rows_of_several_workers_are_all_kept(tmp_path: Path) -> None:
    page = tmp_path / "conformance.json"

    def keep(worker: int) -> None:
        for number in range(40):
            write([{"op": f"op_{worker}_{number}", "forward": [1, 1], "padding": "x" * 500}], page)

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(keep, range(4)))
    assert set(json.loads(page.read_text())) == {f"op_{worker}_{number}" for worker in range(4) for number in range(40)}
