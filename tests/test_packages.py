"""The four distributions: their metadata agree, and an installation is found wherever a script runs."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("protocol", "ops", "client", "service")
OURS = re.compile(r"(opbox[\w-]*)(\[[\w-]+\])?(.*)")


def project(part: str) -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"]
    return document


@pytest.mark.parametrize("part", PARTS)
def test_a_distribution_says_what_an_index_shows(part: str) -> None:
    metadata = project(part)
    assert metadata["license"] == "Apache-2.0"
    assert metadata["license-files"] == ["LICENSE"]
    assert (ROOT / part / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    readme = (ROOT / part / metadata["readme"]).read_text()
    assert readme.startswith(f"# {metadata['name']}\n")
    assert "](docs/" not in readme  # an index shows it where no such file is
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(metadata["classifiers"])
    assert "Typing :: Typed" in metadata["classifiers"]


def test_versions_are_one_and_pinned_to_each_other() -> None:
    projects = [project(part) for part in PARTS]
    (version,) = {metadata["version"] for metadata in projects}
    names = {metadata["name"] for metadata in projects}
    for metadata in projects:
        extras = metadata.get("optional-dependencies", {}).values()
        for requirement in [*metadata["dependencies"], *(one for extra in extras for one in extra)]:
            match = OURS.fullmatch(requirement)
            if match is not None:
                assert match[1] in names
                assert match[3] == f"=={version}", (metadata["name"], requirement)


def test_a_release_has_its_addresses(tmp_path: Path) -> None:
    """Built with them, every distribution names them to an index; without, none."""
    named = ["Homepage=https://opbox.example", "Documentation=", "Source=https://git.example/opbox"]
    for urls, expected in (
        (named, {"Homepage, https://opbox.example", "Source, https://git.example/opbox"}),
        ([], set()),
    ):
        subprocess.run([sys.executable, ROOT / ".ci/packages.py", tmp_path / "sources", *urls], check=True)
        for part in PARTS:
            script = (
                "import sys; from setuptools.build_meta import prepare_metadata_for_build_wheel as p; p(sys.argv[1])"
            )
            folder = tmp_path / part
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            subprocess.run(
                [sys.executable, "-c", script, folder], cwd=tmp_path / "sources" / part, check=True, capture_output=True
            )
            (metadata,) = folder.glob("*.dist-info/METADATA")
            message = email.message_from_string(metadata.read_text())
            assert set(message.get_all("Project-URL", [])) == expected
            assert message["Name"] == project(part)["name"]


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [("Home=https://opbox.example", "expected Homepage"), ("Homepage=opbox.example", "expected an address with http")],
)
def test_an_address_that_is_none_is_refused(argument: str, sentence: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/packages.py", tmp_path / "sources", argument], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert not (tmp_path / "sources").exists()


def test_the_client_has_extras() -> None:
    assert {"server", "image", "notebook", "viz", "onnx"} <= set(project("client")["optional-dependencies"])


def test_every_requirement_is_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = {
        re.split(r"[\[<>=;\s]", line)[0].lower().replace("_", "-")
        for file in (
            "requirements-dev.txt",
            ".ci/packaging.txt",
            ".ci/nvrtc.txt",
            ".ci/page.txt",
            ".ci/torch.txt",
            ".ci/pythons.txt",
        )
        for line in (ROOT / file).read_text().splitlines()
        if line and not line.startswith("#")
    }
    for part in PARTS:
        metadata = project(part)
        extras = {name: one for name, one in metadata.get("optional-dependencies", {}).items() if "cuda" not in name}
        for requirement in [*metadata["dependencies"], *(one for extra in extras.values() for one in extra)]:
            if not requirement.startswith("opbox"):
                wanted.add(re.split(r"[\[<>=;\s]", requirement)[0].lower().replace("_", "-"))
    assert wanted - pinned == set()


def reached(requirements: Iterable[str]) -> dict[NormalizedName, str]:
    """The installed packages that requirements lead to, with their versions; what is not installed is passed over."""
    versions: dict[NormalizedName, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(Requirement(line), frozenset[str]()) for line in requirements]
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
        ):
            continue
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        versions[name] = package.version
        if (name, wanted) not in seen:
            seen.add((name, wanted))
            waiting += [(Requirement(line), wanted | {""}) for line in package.requires or ()]
    return versions


def test_what_requirements_bring_with_them_is_pinned_too() -> None:
    # On each Python that the tests run with (make pythons): what a package needs differs with its version.
    lines = [
        line
        for file in (ROOT / "requirements-dev.txt", *(ROOT / ".ci").glob("*.txt"))
        for line in file.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    ours = [
        f"{metadata['name']}[{','.join(metadata.get('optional-dependencies', {}))}]" for metadata in map(project, PARTS)
    ]
    pinned = {
        canonicalize_name(name): version.partition(" ")[0]
        for name, sign, version in (
            line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
        )
        if sign
    }
    names = {canonicalize_name(project(part)["name"]) for part in PARTS}
    versions = {name: version for name, version in reached([*lines, *ours]).items() if name not in names}
    assert {"numpy", "pydantic", "pytest"} <= set(versions)
    assert {name: version for name, version in versions.items() if pinned.get(name) != version} == {}


def test_a_folder_called_opbox_beside_a_script_hides_nothing(tmp_path: Path) -> None:
    # As where the working folder is the one that this was cloned into.
    for part, package in zip(PARTS, ("opbox_protocol", "opbox_ops", "opbox", "opbox_service"), strict=True):
        (tmp_path / "opbox" / part / package).mkdir(parents=True)
    (tmp_path / "opbox_ops").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import opbox as mx, opbox_ops, opbox_service\n"
        "print(mx.sym.Variable('x').name, opbox_ops.__file__ is not None, opbox_service.__file__ is not None)\n"
    )
    for command in ([str(script)], ["-c", script.read_text()], ["-m", "script"]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout == "x True True\n", done.stderr


NETWORK = (
    "import opbox as mx; from opbox import sym; "
    "net = sym.SoftmaxOutput(sym.FullyConnected(sym.tanh(sym.Variable('data')), num_hidden=3), name='softmax'); "
    "executor = net.simple_bind(data=(2, 4), softmax_label=(2,)); executor.forward(is_train=True); "
    "executor.backward(); executor.grad_dict['data'].asnumpy(); (mx.nd.ones((2,)) + 1).asnumpy()"
)


@pytest.mark.parametrize(
    "start", ["import opbox_service.serve", "from opbox_ops import registry; registry.load()", NETWORK]
)
def test_neither_a_process_nor_a_network_of_plain_functions_loads_scipy(start: str) -> None:
    code = f"{start}; import sys; print(*(name for name in sys.modules if name.startswith('scipy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_server_starts_without_what_writes_the_openapi_document() -> None:
    code = (
        "import sys\n"
        "from opbox_service.serve import Server\n"
        "from opbox_service.settings import Settings\n"
        "server = Server(Settings(token='a-token-of-22-characters', port=0), announce=False)\n"
        "print('fastapi' in sys.modules, len(server.middleware.server.openapi()['paths']) > 20)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("target", ["demo", "serve"])
def test_who_only_runs_it_installs_no_tools(target: str) -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "-e protocol" in planned
    assert "requirements-dev" not in planned
