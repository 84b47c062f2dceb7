"""A router in front of a few servers, as a gateway stands there: by session, and to a server that is there."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.contract.live import Live


class Router:
    """Passes calls on to servers. New sessions go to the first that is there; those of a dead one are answered 410.

    Args:
        servers: in the order in which they get sessions.
    """

    def __init__(self, *servers: Live) -> None:
        self.servers = list(servers)
        self.dead: set[int] = set()
        self.opened: list[int] = []
        self._of_session: dict[str, int] = {}

        def pass_on(handler: BaseHTTPRequestHandler) -> None:
            body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
            status, headers, answer = self.answer(handler.command, handler.path, dict(handler.headers.items()), body)
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(answer)))
            handler.end_headers()
            handler.wfile.write(answer)

        methods = {f"do_{method}": pass_on for method in ("GET", "POST", "PUT", "DELETE")}
        quiet = {"protocol_version": "HTTP/1.1", "log_message": lambda *line: None}
        handlers = type("Handler", (BaseHTTPRequestHandler,), {**methods, **quiet})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handlers)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of what a server answers."""
        parts = path.split("?")[0].split("/")
        session = parts[3] if parts[1:3] == ["v1", "sessions"] and len(parts) > 3 else None
        alive = [number for number in range(len(self.servers)) if number not in self.dead]
        number = self._of_session.get(session, alive[0]) if session is not None else alive[0]
        try:
            if number in self.dead:
                raise ConnectionError("dead")
            answer = self._ask(number, method, path, headers, body)
        except (OSError, http.client.HTTPException):
            self.dead.add(number)
            if session is None:
                return self.answer(method, path, headers, body)
            text = f"session {session}: expected its node to be there, got none: node {number} has died"
            error = json.dumps({"error": text, "type": "GoneError", "node": None, "detail": {}, "request_id": "r"})
            return 410, {"Content-Type": "application/json"}, error.encode()
        if method == "POST" and path == "/v1/sessions" and answer[0] == 201:
            self._of_session[json.loads(answer[2])["id"]] = number
            self.opened.append(number)
        return answer

    def _ask(
        self, number: int, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        host, _, port = self.servers[number].url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request(method, path, body, {k: v for k, v in headers.items() if k.lower() not in HOP})
            response = connection.getresponse()
            passed = {k: v for k, v in response.getheaders() if k.lower() not in (*HOP, "content-length")}
            return response.status, passed, response.read()
        finally:
            connection.close()

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()


HOP = {"connection", "keep-alive", "host", "transfer-encoding", "date", "server"}
