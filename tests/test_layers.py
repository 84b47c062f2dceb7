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
# The service's folders and modules, each importing only what stands before it.
SERVICE = [
    "__init__",
    "allocator",
    "blas_threads",
    "stream_thread",
    "call_threads",
    "sealed_files",
    "owner_locks",
    "token_hashes",
    "owner_terms",
    "session_ids",
    "settings",
    "environment",
    "validation",
    "json_pieces",
    "json_text",
    "logs",
    "exit_status",
    "memory_shares",
    "buffers",
    "quota",
    "device_time",
    "turns",
]
SERVICE += [
    "stages",
    "task",
    "carriers",
    "accounting",
    "state_dir",
    "state_swap",
    "state_format",
    "owner_files",
    "stored_objects",
    "graph_store",
    "checkpoint_store",
    "dataset_documents",
    "dataset_store",
    "store_threads",
    "graph",
    "executor",
    "selfcheck",
    "models",
    "stores",
    "stateless",
    "groups",
    "commands",
    "custom",
    "session",
    "routes",
]
SERVICE += [
    "engine",
    "codec",
    "embedded",
    "worker",
    "listening",
    "api",
    "backup",
    "grpc",
    "app",
    "cluster",
    "serve",
    "schema",
]


def _imports(path: Path, package: str) -> list[str]:
    """Absolute names of the modules that a file imports, in functions too; not those that only a type checker sees."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    here = [package, *path.relative_to(ROOT / PACKAGES[package] / package).with_suffix("").parts]
    guarded = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test)
        for n in ast.walk(i)
    }
    modules = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            modules += [f"{module}.{alias.name}" for alias in node.names]
    return modules


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    files = sorted((ROOT / PACKAGES[package] / package).rglob("*.py"))
    assert files
    wrong = []
    for path in files:
        modules = [module for module in _imports(path, package) if module.split(".")[0] in PACKAGES]
        wrong += [f"{path.relative_to(ROOT)} imports {m}" for m in modules if m.split(".")[0] not in ALLOWED[package]]
    assert not wrong, "\n".join(wrong)


def test_service_folders_import_downwards() -> None:
    root = ROOT / "service" / "opbox_service"
    places = {path.stem for path in root.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert places == set(SERVICE), "SERVICE has the order of all folders and modules"
    wrong = []
    for position, place in enumerate(SERVICE):
        above = {f"opbox_service.{later}" for later in SERVICE[position + 1 :]}
        for path in sorted((root / place).rglob("*.py")) or [root / f"{place}.py"]:
            modules = [m for m in _imports(path, "opbox_service") if ".".join(m.split(".")[:2]) in above]
            wrong += [f"{path.relative_to(ROOT)} imports {module}" for module in modules]
    assert not wrong, "\n".join(wrong)


def _modules_imported(path: Path, package: str, modules: dict[str, Path]) -> set[str]:
    """The modules of its own package that a file imports; a name that is none is looked for in the module above."""
    names = set()
    for name in _imports(path, package):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        names.add(name)
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circles(package: str) -> None:
    root = ROOT / PACKAGES[package]
    modules = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    above = {name: _modules_imported(path, package, modules) - {name, ""} for name, path in modules.items()}
    while True:
        bottom = {name for name, imports in above.items() if not imports}
        if not bottom:
            break
        above = {name: imports - bottom for name, imports in above.items() if name not in bottom}
    assert not above, "import one another: " + "; ".join(f"{name}: {', '.join(sorted(above[name]))}" for name in above)


def test_only_the_cupy_backend_imports_cupy() -> None:
    wrong = []
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder / package).rglob("*.py"):
            names = {module.split(".")[0] for module in _imports(path, package)}
            if names & {"cupy", "cupyx"} and path.name != "cupy.py":
                wrong.append(str(path.relative_to(ROOT)))
    assert not wrong, "\n".join(wrong)


CPU_FOLDERS = {
    "runtime": set(),
    "algorithms": {"runtime"},
    "onednn": {"runtime"},
    "computes": {"runtime", "algorithms", "onednn"},
}
"""What a folder of `opbox_ops.cpu` may import of the others."""


@pytest.mark.parametrize("folder", CPU_FOLDERS)
def test_the_cpus_folders_import_one_way(folder: str) -> None:
    files = sorted((ROOT / "ops/opbox_ops/cpu" / folder).glob("*.py"))
    assert files
    imported = {
        (path.name, name.split(".")[2]) for path in files for name in _imports(path, "opbox_ops") if _is_cpu(name)
    }
    wrong = [pair for pair in imported if pair[1] in CPU_FOLDERS and pair[1] not in {folder, *CPU_FOLDERS[folder]}]
    assert not wrong


def _is_cpu(module: str) -> bool:
    return module.startswith("opbox_ops.cpu.")
