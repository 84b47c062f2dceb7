"""What a call may leave out is the same with a session and without, and OpenAPI says so."""

from __future__ import annotations

from typing import Any

from opbox_service.embedded import EmbeddedTransport
from opbox_service.routes.table import ROUTES
from tests.contract.live import IDENTITY


def test_a_type_may_be_null_with_a_session_and_without() -> None:
    transport = EmbeddedTransport()
    query: dict[str, Any] = {"graph": IDENTITY, "types": {"x": None}}
    alone = transport.call("POST", "/v1/infer_type", query).header
    path = f"/v1/sessions/{transport.call('POST', '/v1/sessions', {}).header['id']}"
    answer = transport.call("POST", f"{path}/commands", {"commands": [{"do": "infer_type", **query}]}).header
    transport.call("DELETE", path)
    assert answer["results"] == [{"command": 0, **alone}]


def test_the_device_of_a_call_that_names_none_is_the_servers() -> None:
    defaults = []
    for route in ROUTES:
        schema = route.request.model_json_schema() if route.request is not None else {}
        for model in (schema, *schema.get("$defs", {}).values()):
            fields = model.get("properties", {})
            if "device" in fields and "device" not in model.get("required", ()):
                defaults.append(fields["device"].get("default"))
    assert defaults == [None] * 3
