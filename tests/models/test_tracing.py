"""Spans of requests at an OpenTelemetry collector: their parts, whose children they are, ids in errors and logs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from pydantic import ValidationError

import opbox as mx
from opbox import connection
from opbox_service.settings import Settings
from tests.contract.live import TOKENS, Live
from tests.models.collector import Collector, collecting
from tests.models.conftest import address_of, loaded, wait_until
from tests.models.grpc_client import calls, request

INFER = "POST /v2/models/{model}/infer"
COMMANDS = "POST /v1/sessions/{id}/commands"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
TENSOR = {"name": "data", "shape": [1, 4], "datatype": "FP32", "data": [0.5] * 4}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


@pytest.fixture(scope="module")
def traced(folder: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that sends its spans to the collector every 50 ms."""
    live = Live(
        "process",
        tmp_path_factory.mktemp("traced"),
        OPBOX_MODELS=str(folder),
        OPBOX_GRPC_PORT="0",
        OPBOX_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="50",
    )
    loaded(live)
    yield live
    assert live.stop() == 0


def has(*names: str) -> Any:
    """Whether spans of these names have come."""
    return lambda spans: set(names) <= {span.name for span in spans}


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes: texts and whole numbers."""
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def check_inside(spans: dict[str, Any], root: str, order: list[str]) -> None:
    """The others are the root's children, inside its time, and begin in this order."""
    outer = spans[root]
    parts = [spans[name] for name in order]
    assert {part.parent_span_id for part in parts} == {outer.span_id}
    begins = [part.start_time_unix_nano for part in parts]
    assert begins == sorted(begins)
    for part in parts:
        assert outer.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
        assert part.end_time_unix_nano <= outer.end_time_unix_nano


def test_a_request_for_a_model_is_a_child_of_its_caller_s_span(traced: Live, collector: Collector) -> None:
    answer = traced.clients["ann"].post("/v2/models/batched/infer", json={"inputs": [TENSOR]}, headers=HEADERS)
    assert answer.status_code == 200
    order = ["receive", "queue", "batch", "compute", "transfer"]
    spans = collector.wait(has(INFER), TRACE)
    check_inside(spans, INFER, order)
    assert spans[INFER].parent_span_id.hex() == PARENT
    assert attributes(spans[INFER]) == {
        "http.request.method": "POST",
        "http.route": "/v2/models/{model}/infer",
        "url.path": "/v2/models/batched/infer",
        "http.response.status_code": 200,
        "opbox.owner": "ann",
        "opbox.request_id": answer.headers["x-request-id"],
    }
    assert collector.service_names == {"opbox"}


def test_a_call_by_grpc_is_a_child_of_its_caller_s_span(traced: Live, collector: Collector) -> None:
    trace = "5" * 32
    with calls(address_of(traced)) as client:
        (answer,) = client.stream([request(np.zeros((1, 4)), "batched")], traceparent=f"00-{trace}-{PARENT}-01")
    assert answer.infer_response.model_name == "batched"
    spans = collector.wait(has(INFER), trace)
    check_inside(spans, INFER, ["receive", "queue", "batch", "compute", "transfer"])
    assert spans[INFER].parent_span_id.hex() == PARENT


def test_an_error_and_its_line_in_the_log_name_the_trace(traced: Live, collector: Collector) -> None:
    answers = [
        traced.clients["ann"].post("/v2/models/plain/infer", json={"inputs": inputs}).json()
        for inputs in ([], [{**TENSOR, "name": "other"}])
    ]
    answers.append(traced.clients["ann"].get("/v2/models/nothing").json())

    def logged() -> dict[str, dict[str, str]]:
        whole = Path(traced.log.name).read_text().rpartition("\n")[0].splitlines()
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return {line["request_id"]: line for line in lines if line.get("event") == "request"}

    # A line is written when its answer has been sent.
    wait_until(lambda: {answer["request_id"] for answer in answers} <= logged().keys())
    for answer in answers:
        line = logged()[answer["request_id"]]
        assert (line["trace_id"], line["error"]) == (answer["trace_id"], answer["error"])
        spans = collector.wait(lambda spans: any("/v2/models" in span.name for span in spans), answer["trace_id"])
        (root,) = [span for name, span in spans.items() if "/v2/models" in name]
        assert attributes(root)["opbox.error"] == answer["error"]
    assert len({answer["trace_id"] for answer in answers}) == 3


def test_a_sender_decides_whether_its_trace_is_recorded(traced: Live, collector: Collector) -> None:
    quiet, loud = "1" * 32, "2" * 32
    for trace, flag in ((quiet, "00"), (loud, "01")):
        headers = {"traceparent": f"00-{trace}-{PARENT}-{flag}"}
        answer = traced.clients["ann"].post("/v2/models/plain/infer", json={"inputs": []}, headers=headers)
        assert answer.json()["trace_id"] == trace
    collector.wait(has(INFER), loud)
    assert quiet not in collector.traces()


@pytest.mark.parametrize("header", ["", "00-zz-11-01", f"00-{'0' * 32}-{PARENT}-01", "x" * 4000])
def test_a_header_that_is_none_begins_a_trace(traced: Live, header: str) -> None:
    answer = traced.clients["ann"].get("/v2/models/nothing", headers={"traceparent": header})
    assert (answer.status_code, len(answer.json()["trace_id"])) == (404, 32)
    assert int(answer.json()["trace_id"], 16) > 0


def test_probes_are_not_traced(traced: Live, collector: Collector) -> None:
    trace = "3" * 32
    for path in ("/v2/health/live", "/v2", "/v2/models/plain"):
        headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
        assert traced.clients["ann"].get(path, headers=headers).status_code == 200
    spans = collector.wait(has("GET /v2/models/{model}"), trace)
    assert {name for name in spans if name.startswith("GET")} == {"GET /v2/models/{model}"}


def test_the_client_passes_the_program_s_span_on(traced: Live, collector: Collector) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    client = mx.serve.Client(traced.url, TOKENS["ann"])
    model = client.model("plain")
    x = np.zeros((1, 4), np.float32)
    with tracer.start_as_current_span("predict") as span:
        model(data=x)
    model(data=x)  # outside of the span: a trace of its own
    own = span.get_span_context()
    spans = collector.wait(has(INFER), f"{own.trace_id:032x}")
    assert int.from_bytes(spans[INFER].parent_span_id, "big") == own.span_id
    client.close()


def test_a_session_s_batches_are_of_the_span_that_recorded_them(traced: Live, collector: Collector) -> None:
    """Batches are sent by threads of the session: the span is that of the thread that recorded them."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    mx.connect(traced.url, TOKENS["ann"])
    try:
        with tracer.start_as_current_span("step") as span:
            values = (mx.nd.ones((2, 2)) + 1).asnumpy()
    finally:
        connection.use(None)
    assert values.tolist() == [[2, 2], [2, 2]]
    own = span.get_span_context()
    spans = collector.wait(has(COMMANDS), f"{own.trace_id:032x}")
    assert int.from_bytes(spans[COMMANDS].parent_span_id, "big") == own.span_id
    check_inside(spans, COMMANDS, ["receive", "queue", "compute", "transfer"])


def test_a_server_in_one_process_has_the_same_spans(folder: Path, collector: Collector, tmp_path: Path) -> None:
    live = Live("none", tmp_path, OPBOX_MODELS=str(folder), OPBOX_OTLP_ENDPOINT=collector.url)
    loaded(live)
    trace = "4" * 32
    headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
    body = {"inputs": [TENSOR]}
    assert live.clients["ann"].post("/v2/models/batched/infer", json=body, headers=headers).status_code == 200
    assert live.stop() == 0  # what is left is sent before it ends
    check_inside(collector.wait(has(INFER), trace), INFER, ["receive", "queue", "batch", "compute", "transfer"])


def test_a_collector_that_is_not_there_stops_nobody(folder: Path, tmp_path: Path) -> None:
    with collecting() as gone:
        url = gone.url
    live = Live("none", tmp_path, OPBOX_OTLP_ENDPOINT=url)
    assert live.clients["ann"].get("/v2/models/nothing").status_code == 404
    assert live.stop() == 0


def test_nothing_is_imported_where_nobody_asks_for_traces() -> None:
    program = (
        "import sys; from opbox_service.app import create_app; from opbox_service.settings import Settings; "
        "import opbox.serve; create_app(Settings(token='a-token-of-the-tests')); "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"  # lines of the log come before it


def test_a_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; "
        "from opbox_service.app import create_app; from opbox_service.settings import Settings; "
        "create_app(Settings(token='a-token-of-the-tests', otlp_endpoint='http://127.0.0.1:1'))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        "OPBOX_OTLP_ENDPOINT: needs OpenTelemetry's SDK and exporter: pip install 'opbox-service[otel]'" in run.stderr
    )


@pytest.mark.parametrize("endpoint", ["collector:4318", "", "ftp://collector"])
def test_an_endpoint_is_an_address(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="otlp_endpoint"):
        Settings(otlp_endpoint=endpoint)


def test_a_client_without_opentelemetry_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from opbox.trace_context import attached, current_context, traced

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    headers = {"Accept": "x"}
    assert traced(headers) is headers
    assert current_context() is None
    with attached(None):
        assert traced(headers) is headers
