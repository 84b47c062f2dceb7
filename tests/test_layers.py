"""Imports run one way: service -> ops -> protocol, service -> client -> protocol; and inside the service downwards."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"opbox_protocol": "protocol", "opbox": "client", "opbox_ops": "ops", "opbox_service": "service"}
ALLOWED = {
    "opbox_protocol": {"opbox_protocol"},
    "opbox": {"opbox", "opbox_protocol"},
    "opbox_ops": {"opbox_ops", "opbox_protocol"},
    "opbox_service": set(PACKAGES),
}
# The client's lazy imports of the service, inside functions: the embedded engine and `opbox serve`.
LAZY = {"opbox": {"opbox_service"}}
INNER = ["graph", "executor", "session", "api"]


def _imports(path: Path, package: str) -> list[tuple[str, bool]]:
    """(absolute module name, whether it is inside a function) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    here = [package, *path.relative_to(ROOT / PACKAGES[package] / package).with_suffix("").parts]
    inside = {
        id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)
    }
    guarded = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test)
        for n in ast.walk(i)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in inside) for alias in node.names if id(node) not in guarded]
        elif isinstance(node, ast.ImportFrom) and id(node) not in guarded:
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found += [(f"{module}.{alias.name}", id(node) in inside) for alias in node.names]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    files = sorted((ROOT / PACKAGES[package] / package).rglob("*.py"))
    assert files
    wrong = []
    for path in files:
        for module, in_function in _imports(path, package):
            top = module.split(".")[0]
            allowed = ALLOWED[package] | (LAZY.get(package, set()) if in_function else set())
            if top in PACKAGES and top not in allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_service_folders_import_downwards() -> None:
    root = ROOT / "service" / "opbox_service"
    wrong = []
    for position, folder in enumerate(INNER):
        files = sorted((root / folder).rglob("*.py"))
        assert files, f"service/opbox_service/{folder} has no files"
        above = {f"opbox_service.{later}" for later in INNER[position + 1 :]}
        for path in files:
            for module, _ in _imports(path, "opbox_service"):
                if ".".join(module.split(".")[:2]) in above:
                    wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_only_the_cupy_backend_imports_cupy() -> None:
    wrong = []
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder / package).rglob("*.py"):
            names = {module.split(".")[0] for module, _ in _imports(path, package)}
            if names & {"cupy", "cupyx"} and path.name != "cupy.py":
                wrong.append(str(path.relative_to(ROOT)))
    assert not wrong, "\n".join(wrong)
