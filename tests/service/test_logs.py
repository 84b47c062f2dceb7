"""The log: an exception has its lines, and no values, which may be secrets and take long to write out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from opbox_service.logs import EXCEPTION_BYTES, exceptions_of

FAILING = """
import structlog
from opbox_service.logs import configure
from opbox_service.settings import Settings
configure(Settings())
def fail():
    token = "s3cret" * 2
    headers = {"authorization": token}
    raise KeyError("missing")
try:
    fail()
except KeyError:
    structlog.get_logger().error("internal error", exc_info=True)
    import logging
    logging.getLogger("uvicorn.error").error("of a library", exc_info=True)
"""


def test_an_exception_shows_lines_and_no_values() -> None:
    ended = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["internal error", "of a library"]
    for line in lines:
        (exception,) = line["exception"]
        assert (exception["exc_type"], exception["exc_value"]) == ("KeyError", "'missing'")
        assert [frame["name"] for frame in exception["frames"]] == ["<module>", "fail"]
    assert "s3cret" not in ended.stderr


def nested(depth: int, words: str) -> None:
    """Raise an exception from one of its own kind, and so on."""
    try:
        if depth:
            nested(depth - 1, words)
    except ValueError as error:
        raise ValueError(words) from error
    raise ValueError(words)


def test_an_exception_has_few_bytes_in_a_log_line() -> None:
    with pytest.raises(ValueError) as caught:
        nested(100, "words \U0001f600" * 10_000)
    rows = exceptions_of(caught.value)
    assert len(json.dumps(rows)) <= EXCEPTION_BYTES
    assert rows[0]["exc_type"] == "ValueError"
    assert rows[0]["frames"][-1]["name"] == "nested"
