"""`opbox doctor`: measures the way to the server, and says what limits a training step."""

from __future__ import annotations

import os
import statistics
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError

from .. import address, token_store
from ..byte_counts import bytes_text
from ..proxies import proxy_for
from .output import json_option, print_json

if TYPE_CHECKING:
    import httpx

    from ..http import HttpTransport

__all__ = ["doctor"]

CALLS = 9
"""Number of small calls whose median is the round trip."""
NBYTES = 4 << 20
"""Bytes that are sent, and fetched, to measure the rates."""
LONG_S = 0.004
"""Seconds of a round trip from which on a step that waits for a value feels it."""
SLOW_RATE = 25e6
"""Bytes per second below which a step's images take longer to travel than a small network to compute."""
CLOCK_S = 5.0
"""Seconds that two clocks may differ; an answer's Date has whole ones."""


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Measure the way to the server, and say what limits a training step."""
    figures = _measure()
    if as_json:
        print_json(figures)
    else:
        print("\n".join([*_lines(figures), *_advice(figures)]))


def _measure() -> dict[str, Any]:
    """Return the server's address and version, and the figures of the way there."""
    url = os.environ.get("OPBOX_URL")
    if not url:
        raise MXNetError("doctor: expected a server's address in OPBOX_URL, got none: programs compute on this machine")
    import httpx

    from ..http import HttpTransport

    answers: list[httpx.Response] = []
    with httpx.Client(event_hooks={"response": [answers.append]}) as client:
        transport = HttpTransport(url, os.environ.get("OPBOX_TOKEN") or token_store.read(url), http=client)
        about = transport.call("GET", routes.ABOUT).header
        round_trip_s = statistics.median(_seconds(transport, "GET", routes.ABOUT) for _ in range(CALLS))
        up, down = _rates(transport, round_trip_s)
    last = answers[-1]
    date = last.headers.get("Date")
    parts = address.split(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    proxy = proxy_for(parts.scheme, host, port)
    return {
        "address": transport.address,
        "version": about.get("version", ""),
        "http": last.http_version,
        "tls": _tls_version(last),
        "proxy": None if proxy is None else str(proxy),
        "clock_s": None if date is None else parsedate_to_datetime(date).timestamp() - time.time(),
        "round_trip_s": round_trip_s,
        "up_bytes_per_s": up,
        "down_bytes_per_s": down,
    }


def _seconds(transport: HttpTransport, method: str, path: str, *body: Any) -> float:
    begun = time.perf_counter()
    transport.call(method, path, *body)
    return time.perf_counter() - begun


def _rates(transport: HttpTransport, round_trip_s: float) -> tuple[float, float]:
    """Bytes per second to the server and back: of one array, without the round trip."""
    id = transport.call("POST", routes.SESSIONS, {"device": "cpu", "code": False}).header["id"]
    path = routes.COMMANDS.format(id=id)
    array = np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8)
    put = {"seq": 1, "commands": [{"do": "put", "id": 1, "tensor": "x"}]}
    fetch = {"seq": 2, "commands": [{"do": "fetch", "id": 1, "as": "x"}]}
    try:
        up = _seconds(transport, "POST", path, put, {"x": array})
        down = _seconds(transport, "POST", path, fetch)
    finally:
        transport.call("DELETE", routes.SESSION.format(id=id))
    return NBYTES / max(up - round_trip_s, 1e-6), NBYTES / max(down - round_trip_s, 1e-6)


def _tls_version(answer: httpx.Response) -> str | None:
    stream: Any = answer.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("ssl_object")
    return None if connection is None else str(connection.version())


def _lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    ways = [figures["http"], figures["tls"] or "no TLS"]
    ways.append(f"through the proxy {figures['proxy']}" if figures["proxy"] else "no proxy")
    rates = [f"{bytes_text(int(figures[key]))}/s" for key in ("up_bytes_per_s", "down_bytes_per_s")]
    lines = [
        f"opbox {figures['version']} at {figures['address']}: {', '.join(ways)}",
        f"round trip {figures['round_trip_s'] * 1e3:.1f} ms; {rates[0]} to the server, {rates[1]} back",
    ]
    if figures["clock_s"] is not None and abs(figures["clock_s"]) > CLOCK_S:
        side = "ahead of" if figures["clock_s"] > 0 else "behind"
        lines.append(f"the server's clock is {abs(figures['clock_s']):.0f} s {side} this machine's")
    return lines


def _advice(figures: dict[str, Any]) -> list[str]:
    """What limits a training step on this way."""
    round_trip_ms, up = figures["round_trip_s"] * 1e3, figures["up_bytes_per_s"]
    lines = []
    if figures["round_trip_s"] > LONG_S:
        lines.append(
            f"A step whose values you read (a metric at every batch, asnumpy) takes at least {round_trip_ms:.0f} ms: "
            "read them less often."
        )
    if up < SLOW_RATE:
        lines.append(
            f"A batch of 1 MiB takes {(1 << 20) / up * 1e3:.0f} ms to travel: smaller batches of images, or images as "
            "uint8, make a step faster."
        )
    return lines or ["The way to the server does not limit a training step: the computation does."]
