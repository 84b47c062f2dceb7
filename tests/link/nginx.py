"""Nginx: Debian's nginx before a server, with a site as an administrator writes it.

with Nginx(folder, "location / { proxy_pass http://127.0.0.1:8000; }") as nginx:
    mx.connect(nginx.url)
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

__all__ = ["NGINX", "Nginx", "needs_nginx", "write_configuration"]

ROOT = Path(__file__).resolve().parents[2]
NGINX = shutil.which("nginx") or shutil.which(ROOT / ".nginx" / "usr" / "sbin" / "nginx")
"""The machine's nginx, or the one that `make nginx` unpacks; None where there is none."""
needs_nginx = pytest.mark.skipif(NGINX is None, reason="no nginx on this machine")
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""What nginx has a folder for, which Debian's package makes where it is installed."""


class Nginx:
    """An nginx that runs until it is left.

    Args:
        folder: for its files.
        site: directives of its one server, but for the address.
        tls: the folder of cert.pem and key.pem, where it speaks TLS.
        http: directives outside of the server.

    Attributes:
        url: where it listens.
    """

    def __init__(self, folder: Path, site: str, tls: bool = False, http: str = "") -> None:
        assert NGINX is not None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
        self.folder = folder
        listen = "" if "listen " in site else f"listen 127.0.0.1:{port};"
        site = site.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
        write_configuration(folder, f"{http}\nserver {{\n{listen}\n{site}\n}}")
        self._process = subprocess.Popen(
            [NGINX, "-p", folder, "-e", "error.log", "-c", "nginx.conf", "-g", "daemon off; pid nginx.pid;"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait_until_it_listens(port)

    def _wait_until_it_listens(self, port: int) -> None:
        while True:
            assert self._process.poll() is None, self.log
            try:
                socket.create_connection(("127.0.0.1", port), timeout=10).close()
            except ConnectionRefusedError:
                continue
            return

    def __enter__(self) -> Nginx:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    @property
    def log(self) -> str:
        """What it has written about errors."""
        return (self.folder / "error.log").read_text("utf-8")


def write_configuration(folder: Path, http: str) -> None:
    """Write nginx.conf with these directives of HTTP, and folders that nginx may write into."""
    folders = "\n".join(f"{name}_temp_path {name};" for name in TEMPORARY)
    user = "user root;" if os.geteuid() == 0 else ""  # nobody else may look into a folder of pytest's
    text = f"{user}\nworker_processes 1;\nevents {{}}\nhttp {{\naccess_log off;\n{folders}\n{http}\n}}\n"
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
