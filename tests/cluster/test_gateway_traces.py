"""Traces through the gateway: a caller's span reaches the node, whose spans carry its name."""

from __future__ import annotations

from pathlib import Path

from opbox_service.session_ids import node_of
from tests.cluster.gateway_nodes import Box
from tests.models.collector import collecting

PARENT = "b7ad6b7169203331"
COMMANDS = "POST /v1/sessions/{id}/commands"
OPENED = "POST /v1/sessions"


def test_a_trace_goes_through_the_gateway_and_its_spans_carry_the_node(tmp_path: Path) -> None:
    with (
        collecting() as collector,
        Box(tmp_path, OPBOX_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="50") as box,
    ):
        for number in range(1, 5):
            trace = str(number) * 32
            headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
            session = box.ann.post("/v1/sessions", json={}, headers=headers).json()["id"]
            path = f"/v1/sessions/{session}/commands"
            assert box.ann.post(path, json={"seq": 1, "commands": []}, headers=headers).status_code == 200
            spans = collector.wait(lambda spans: {OPENED, COMMANDS} <= {span.name for span in spans}, trace)
            assert {spans[name].parent_span_id.hex() for name in (OPENED, COMMANDS)} == {PARENT}
            for span in spans.values():
                names = [one.value.string_value for one in span.attributes if one.key == "opbox.node"]
                assert names == [node_of(session)], span.name
