"""A server that speaks TLS itself."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.contract.live import TOKENS, Live

FILES = Path(__file__).parents[1] / "link" / "tls"
CERTIFICATE, KEY = FILES / "fullchain.pem", FILES / "privkey.pem"
PROGRAM = """
import opbox as mx
x = mx.nd.array([1.0, 2.0])
for _ in range(20):
    x = x * 1.5
print(x.shape, len(mx.nd.ones((300, 1000)).asnumpy()))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(
        "process", tmp_path_factory.mktemp("tls"), OPBOX_SSL_CERTFILE=str(CERTIFICATE), OPBOX_SSL_KEYFILE=str(KEY)
    )
    yield live
    assert live.stop() == 0


def test_calls_by_tls(server: Live) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    with httpx.Client(verify=trusted, headers={"Authorization": f"Bearer {TOKENS['ann']}"}) as client:
        for _ in range(20):  # a fast client's first message comes with its connection
            assert client.get(f"{server.url}/v2/health/ready", headers={"Connection": "close"}).json() == {
                "ready": True
            }


@pytest.mark.parametrize("words", [("-m", "opbox.cli", "status"), ("-c", PROGRAM)], ids=["status", "arrays"])
def test_programs_by_tls(server: Live, words: tuple[str, ...]) -> None:
    environment = os.environ | {
        "OPBOX_URL": server.url,
        "OPBOX_TOKEN": TOKENS["ann"],
        "SSL_CERT_FILE": str(CERTIFICATE),
    }
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    if words[0] == "-c":
        assert ended.stdout == "(2,) 300\n"


def test_without_tls_there_is_no_answer(server: Live) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/v2/health/ready")


@pytest.mark.parametrize(
    ("certificate", "key", "sentence"),
    [
        ("none.pem", KEY, "ssl_certfile: expected a file that can be read, got "),
        (CERTIFICATE, "none.pem", "ssl_keyfile: expected a file that can be read, got "),
        ("", KEY, "ssl_certfile: expected the certificate of ssl_keyfile, got none: name its file"),
        (KEY, KEY, "ssl_certfile: expected a certificate in PEM form, got something else: "),
        (CERTIFICATE, CERTIFICATE, "ssl_keyfile: expected a private key in PEM form, got something else: "),
    ],
)
def test_files_that_do_not_do(tmp_path: Path, certificate: str | Path, key: str | Path, sentence: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
    words = [sys.executable, "-m", "opbox_service.serve", "--port", "0", "--isolation", "none"]
    words += ["--ssl-certfile", str(certificate)] if certificate else []
    words += ["--ssl-keyfile", str(key)]
    ended = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"opbox serve: {sentence}")


def test_a_changed_certificate_is_read_again(tmp_path: Path) -> None:
    certificate, key = shutil.copy(CERTIFICATE, tmp_path), shutil.copy(KEY, tmp_path)
    live = Live("none", tmp_path, OPBOX_SSL_CERTFILE=str(certificate), OPBOX_SSL_KEYFILE=str(key))
    os.utime(certificate, (1, 1))
    log = Path(live.log.name)
    while "certificate read again" not in log.read_text():
        assert live.process.poll() is None
    assert live.stop() == 0
