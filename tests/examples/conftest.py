"""A server for the programs, as the demo starts one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from .programs import EXAMPLES


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """What a program's environment needs to find it."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        from lenet_demo import server as own
    finally:
        sys.path.remove(str(EXAMPLES))
    with own("process") as (url, token):
        yield {"OPBOX_URL": url, "OPBOX_TOKEN": token}
