"""Clients that infer on a model of a cluster while something happens to it."""

from __future__ import annotations

import http.client
import json
import threading
from urllib.parse import urlsplit

from tests.cluster.ray_cluster import PATIENCE_S, TOKENS, until

__all__ = ["Load"]

CLIENTS = 4


class Load:
    """Clients that infer by the gateway until `end`, each on one connection and with rows of its own.

    Attributes:
        answers: number of right answers.
        cut: number of answers whose beginning had come when their node died; no other request may fail.
        failures: of requests that failed in another way, or were answered wrongly.
    """

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._ended = threading.Event()
        self.answers = self.cut = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._infer, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _infer(self, number: int) -> None:
        headers = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "application/json"}
        client = http.client.HTTPConnection(self._address, timeout=PATIENCE_S)
        count = 0
        while not self._ended.is_set():
            count += 1
            row = [number, count, 1]
            inputs = {"inputs": [{"name": "data", "shape": [1, 3], "datatype": "FP32", "data": row}]}
            try:
                client.request("POST", "/v2/models/net/infer", json.dumps(inputs), headers)
                answer = client.getresponse()
                body = answer.read()
            except http.client.IncompleteRead:
                client.close()
                with self._lock:
                    self.cut += 1
                continue
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                return
            if answer.status != 200 or json.loads(body)["outputs"][0]["data"] != [sum(row)] * 2:
                self.failures.append(f"{answer.status} {body!r}")
                return
            with self._lock:
                self.answers += 1
        client.close()

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = self.answers + count
        until(lambda: self.failures or self.answers >= wanted, f"{count} more answers")

    def end(self) -> None:
        """End the clients, and look at what they got."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        assert self.failures == []
        assert self.cut <= CLIENTS
