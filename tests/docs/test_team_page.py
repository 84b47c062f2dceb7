"""The files of docs/tutorials/team.md are files that the server, systemd and nginx take."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opbox_service.api.token_files import read_tokens
from opbox_service.environment import check_environment
from opbox_service.token_hashes import sha256_of
from tests.link.nginx import NGINX, needs_nginx, write_configuration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "team.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


def block(language: str, word: str) -> str:
    """The one block of a language that has a word in it."""
    (text,) = [text for kind, text in BLOCKS if kind == language and word in text]
    return text


def test_the_lines_for_root_write_a_file_of_tokens(tmp_path: Path) -> None:
    lines = block("", "opbox token new").replace("/etc/opbox", str(tmp_path / "opbox"))
    lines = lines.replace("/opt/opbox/bin", str(Path(sys.executable).parent))
    done = subprocess.run(["sh", "-euc", lines], check=True, timeout=60, capture_output=True, text=True)
    file = tmp_path / "opbox" / "tokens.json"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    tokens = read_tokens(file).tokens
    assert [token.name for token in tokens] == ["ann", "bob", "prometheus"]
    assert [token.sha256 for token in tokens] == [sha256_of(line) for line in done.stdout.split()]


def test_the_table_of_owners_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(block("json", "owners").replace("…", "0" * 64), encoding="utf-8")
    assert read_tokens(file).owners.keys() == {"ann", "ci"}


def test_the_unit_is_one(tmp_path: Path) -> None:
    unit = block("ini", "ExecStart")
    names = re.findall(r"^Environment='?(OPBOX_\w+)=(\S+?)'?$", unit, re.M)
    check_environment([name for name, _ in names])
    assert json.loads(dict(names)["OPBOX_ALLOWED_HOSTS"]) == ["box.example.org"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    program = "/opt/opbox/bin/opbox"
    assert program in unit
    file = tmp_path / "opbox.service"
    file.write_text(unit.replace(program, "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in done.stderr.splitlines() if "opbox.service" in line] == []


def test_every_unit_hands_its_user_the_tokens_that_root_alone_may_read() -> None:
    example = PAGE.parents[2] / "examples" / "systemd" / "opbox@.service"
    for unit in (block("ini", "ExecStart"), example.read_text("utf-8")):
        assert "DynamicUser=yes" in unit
        assert "\nLoadCredential=tokens:/etc/opbox/tokens.json\n" in unit
        assert "\nEnvironment=OPBOX_TOKENS_FILE=%d/tokens\n" in unit


@needs_nginx
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_nginx_takes_its_file(tmp_path: Path) -> None:
    key, certificate = tmp_path / "privkey.pem", tmp_path / "fullchain.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=box.example.org"]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    site = block("nginx", "listen 443").replace("/etc/letsencrypt/live/box.example.org", str(tmp_path))
    write_configuration(tmp_path, site)
    done = subprocess.run(
        [str(NGINX), "-t", "-p", tmp_path, "-e", "stderr", "-c", "nginx.conf"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
