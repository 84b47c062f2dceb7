"""Settings of traces and logs: answered as they are, and changes are refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.live import Live
from tests.models.folders import INDEX, UNKNOWN

TRACE = {"trace_level": ["OFF"], "trace_rate": "0", "trace_count": "0", "log_frequency": "0", "trace_file": ""}
LOGS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "json",
}


@pytest.mark.parametrize(
    ("path", "settings"),
    [("/v2/trace/setting", TRACE), ("/v2/models/plain/trace/setting", TRACE), ("/v2/logging", LOGS)],
)
def test_what_is_asked_and_what_stays_as_it_is(server: Live, path: str, settings: dict[str, Any]) -> None:
    client = server.clients["ann"]
    for answer in (
        client.get(path),
        client.post(path),
        client.post(path, json=settings),
        client.post(path, json=dict.fromkeys(settings)),
    ):
        assert (answer.status_code, answer.json()) == (200, settings)


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}, 400,
         "trace_level: expected OFF or null, as this server writes no traces, got ['TIMESTAMPS']"),
        ("/v2/trace/setting", {"trace_rate": "5"}, 400,
         "trace_rate: expected \"0\" or null, as this server writes no traces, got '5'"),
        ("/v2/trace/setting", {"trace_count": 5}, 400,
         "trace_count: expected \"0\" or null, as this server writes no traces, got 5"),
        ("/v2/trace/setting", {"log_frequency": "5"}, 400,
         "log_frequency: expected \"0\" or null, as this server writes no traces, got '5'"),
        ("/v2/models/plain/trace/setting", {"trace_file": "/tmp/trace"}, 400,
         "trace_file: expected \"\" or null, as this server writes no traces, got '/tmp/trace'"),
        ("/v2/models/nothing/trace/setting", {}, 404, UNKNOWN.format("'nothing'", INDEX)),
        ("/v2/trace/setting", {"trace_mode": "opentelemetry"}, 400,
         "unknown field 'trace_mode': expected trace_level, trace_rate, trace_count, log_frequency, trace_file"),
        ("/v2/logging", {"log_verbose_level": 1}, 501,
         "log_verbose_level: expected 0, as the server was started with it, got '1': start it with another "
         "OPBOX_LOG_LEVEL; its log goes to standard error"),
        ("/v2/logging", {"log_info": False}, 501,
         "log_info: expected True, as the server was started with it, got 'False': start it with another "
         "OPBOX_LOG_LEVEL; its log goes to standard error"),
        ("/v2/logging", {"log_file": "/tmp/log"}, 501,
         "log_file: expected '', as the server was started with it, got '/tmp/log': start it with another "
         "OPBOX_LOG_LEVEL; its log goes to standard error"),
        ("/v2/logging", {"log_error": "yes"}, 400, "log_error: expected true or false, got 'yes'"),
    ],
)  # fmt: skip
def test_changes_are_refused(server: Live, path: str, body: dict[str, Any], status: int, sentence: str) -> None:
    answer = server.clients["ann"].post(path, json=body)
    assert (answer.status_code, answer.json()["error"]) == (status, sentence)
