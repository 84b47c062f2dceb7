"""The Dockerfile by hadolint, compose.yaml by its schema, and what the two say of each other and of what is mounted."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.compose

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TOOLS = Path(sys.executable).parent


def yaml(path: Path) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(path.read_text("utf-8"))


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml(ROOT / "compose.yaml")
    return document


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd)


def test_hadolint_has_no_remarks() -> None:
    done = run(TOOLS / "hadolint", DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_agrees_with_its_specification(tmp_path: Path) -> None:
    check = (TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    done = run(*check, ROOT / "compose.yaml")
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / "compose.yaml").read_text("utf-8").replace("read_only: true", "readonly: true"), "utf-8")
    assert run(*check, wrong).returncode == 1


def test_each_profile_has_its_services() -> None:
    profiles = {name: service["profiles"] for name, service in compose()["services"].items()}
    monitoring = {name: ["monitoring"] for name in ("prometheus", "alertmanager", "grafana")}
    assert profiles == {"cpu": ["cpu"], "gpu": ["gpu"], **monitoring}


@pytest.mark.parametrize("name", ["cpu", "gpu", "prometheus", "alertmanager", "grafana"])
def test_a_service_can_do_no_more_than_it_must(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"memory", "pids"} <= service["deploy"]["resources"]["limits"].keys()
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")
    for variable, value in service.get("environment", {}).items():
        assert not re.search(r"TOKEN|PASSWORD", variable) or value.startswith("/run/secrets/"), variable


def test_the_gpu_is_reserved_by_one_service_alone() -> None:
    reserving = {
        name: service["deploy"]["resources"]["reservations"]["devices"]
        for name, service in compose()["services"].items()
        if "reservations" in service["deploy"]["resources"]
    }
    assert reserving.keys() == {"gpu"}
    [device] = reserving["gpu"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
    assert compose()["services"]["gpu"]["build"]["args"]["VARIANT"] == "cuda"


def test_what_is_mounted_is_there() -> None:
    document = compose()
    for service in document["services"].values():
        for volume in service["volumes"]:
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).partition(":")[0]
            assert source in document["volumes"] or (ROOT / source).exists(), source
        assert set(service.get("secrets", ())) <= document["secrets"].keys()


def test_the_servers_ports_are_published() -> None:
    exposed = re.search(r"^EXPOSE (.+)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    assert exposed is not None
    for name in ("cpu", "gpu"):
        ports = [port.rpartition(":")[2] for port in compose()["services"][name]["ports"]]
        assert ports == exposed[1].split(), name


def test_prometheus_finds_the_server() -> None:
    document, config = compose(), yaml(ROOT / "docker" / "monitoring" / "prometheus.yml")
    [job] = config["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    for name in ("cpu", "gpu"):
        assert host in document["services"][name]["networks"]["default"]["aliases"]
    assert f"OPBOX_PORT={port}" in DOCKERFILE.read_text("utf-8")
    secret = job["authorization"]["credentials_file"].removeprefix("/run/secrets/")
    assert secret in document["services"]["prometheus"]["secrets"]
    assert yaml(ROOT / "docker" / "monitoring" / "alerts.yml")["groups"]


def test_images_of_others_have_versions() -> None:
    for service in compose()["services"].values():
        if "build" not in service:
            assert re.fullmatch(r"docker\.io/[\w/]+:v?\d+\.\d+\.\d+", service["image"])
    assert not re.search(r"(?m)^FROM \S+:latest", DOCKERFILE.read_text("utf-8"))


def test_secrets_are_written_once_and_the_server_takes_them(tmp_path: Path) -> None:
    from opbox_service.api.token_files import read_token, read_tokens

    (tmp_path / "docker").mkdir()
    script = tmp_path / "docker" / "make-secrets.sh"
    script.write_text((ROOT / "docker" / "make-secrets.sh").read_text("utf-8"), "utf-8")
    assert run("sh", script).returncode == 0
    folder = tmp_path / "secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    before = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert {f"./secrets/{name}" for name in before} == {secret["file"] for secret in compose()["secrets"].values()}
    assert run("sh", script).returncode == 0
    assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == before
    assert read_token(folder / "token") == before["token"]
    [prometheus] = read_tokens(folder / "tokens.json").tokens
    assert prometheus.scopes == {"metrics"}
    assert prometheus.sha256 == hashlib.sha256(before["metrics-token"].encode()).hexdigest()
    assert before["metrics-token"] not in before["tokens.json"]


def test_the_documents_scrape_as_the_mounted_file_does() -> None:
    from ruamel.yaml import YAML

    blocks = [
        block
        for page in (ROOT / "docs" / "tutorials").glob("*.md")
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    ]
    assert blocks
    own = yaml(ROOT / "docker" / "monitoring" / "prometheus.yml")["scrape_configs"][0]
    for block in blocks:
        [job] = YAML(typ="safe").load(block)["scrape_configs"]
        assert job.keys() <= own.keys() | {"scheme"}
        assert job["authorization"].keys() <= own["authorization"].keys()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/team.md", "docs/tutorials/serving.md"])
def test_the_commands_of_the_documents_name_what_compose_has(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    commands = re.findall(r"docker compose .*", text)
    assert commands
    known = {profile for service in compose()["services"].values() for profile in service["profiles"]}
    used = {profile for command in commands for profile in re.findall(r"--profile (\w+)", command)}
    assert used
    assert used <= known
    files = {Path(secret["file"]).name for secret in compose()["secrets"].values()}
    named = set(re.findall(r"\bsecrets/([\w.-]+\w)", text))
    assert named <= files | {"grafana-password"}


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_settings_of_the_server_come_from_a_file_that_need_not_be_there(name: str) -> None:
    [file] = compose()["services"][name]["env_file"]
    assert file == {"path": "${OPBOX_ENV_FILE:-opbox.env}", "required": False}
    assert "`opbox.env`" in (ROOT / "docs" / "tutorials" / "serving.md").read_text("utf-8")


def test_the_variables_of_compose_that_the_documents_name_are_read() -> None:
    text = (ROOT / "docs" / "tutorials" / "serving.md").read_text("utf-8")
    (sentence,) = re.findall(r"For `compose.yaml` alone, (.*?)\s+set ports", text, re.S)
    source = (ROOT / "compose.yaml").read_text("utf-8")
    for name in re.findall(r"`(OPBOX_\w+)`", sentence):
        assert f"${{{name}:" in source, name
