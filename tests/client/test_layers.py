"""The client's modules form layers: a module imports from its own layer, without circles, and from those below.

Imports inside functions count; those that only a type checker sees do not. A package whose names are imported on first
use is as high as the highest of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[2] / "client"

LAYERS = (
    # What knows nothing of operators and engines.
    "_lazy absent address attribute base batch_senders byte_counts call_numbers class_property command_places drawing "
    "engine engine_warnings exchange file_errors foreign forks freed gate gateway html http http_failures "
    "http_messages imaging known_graphs lean_transport link_rates link_use live_display lr_scheduler misc "
    "model_messages name nesting node_transport not_opbox notebook numpy_mode proxies registry repeated_calls "
    "request_writing script_errors server_scope session_scope session_way sigterm tensor_members token_store "
    "trace_context unfilled_places user_frames libinfo",
    "_schema python_operators",
    # The source of operators that users write.
    "operator.bundle operator.closures operator.code_detection operator.custom operator.definition operator.gather "
    "operator.instances operator.keywords operator.modules operator.origins operator.program_text operator.saved "
    "operator.sending operator.statements operator.values",
    "batch_posting batch_stream connection context device_sessions inference link_report pending recorded_commands "
    "request_limits session session_opening",
    "ndarray",
    "binding executor monitoring placement recovery",
    "symbol",
    "operator contrib random rtc runtime util",
    "aio callback checkpoint image initializer io live_plot metric monitor optimizer dist profiler progress publishing "
    "recordio rnn visualization",
    "datasets executor_manager gradient_compression kvstore serve",
    "module onnx contrib.onnx contrib.svrg_optimization contrib.svrg_optimization.svrg_module",
    "feed_forward model",
    "test_utils",
    "lint",
    "cli",
    "__init__",
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names.split()}


def _modules() -> dict[str, Path]:
    """The client's files by module name: "ndarray.array"; packages by their own, opbox itself as "__init__"."""
    modules = {}
    for path in sorted((CLIENT / "opbox").rglob("*.py")):
        parts = path.relative_to(CLIENT / "opbox").with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"] = path
    return modules


MODULES = _modules()


def _imports(module: str) -> set[str]:
    """The client's modules that a module imports."""
    path = MODULES[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(ast.Module(block.body, []))
    }
    package = path.relative_to(CLIENT).parent.parts
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            submodules = {f"{whole}.{alias.name}".removeprefix("opbox.") for alias in node.names}
            modules = {f"opbox.{name}" for name in submodules if name in MODULES}
            names |= modules if len(modules) == len(node.names) else modules | {whole}
    ours = {name.removeprefix("opbox.") for name in names if name.startswith("opbox.")} | (
        {"__init__"} if "opbox" in names else set()
    )
    return {name for name in ours if name in MODULES} - {module}


def _layer(module: str) -> int:
    parts = module.split(".")
    known = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next(LAYER[name] for name in known if name in LAYER)


def _circles(graph: dict[str, set[str]]) -> Iterable[str]:
    """What is left when modules that import nothing left are taken away, again and again."""
    left = dict(graph)
    while done := [name for name, imports in left.items() if not imports & left.keys()]:
        for name in done:
            del left[name]
    return sorted(left)


def test_every_module_has_a_layer() -> None:
    assert [name for name in MODULES if not any(part in LAYER for part in (name, name.split(".")[0]))] == []
    assert [name for name in LAYER if name not in MODULES] == []


def test_imports_go_downwards() -> None:
    wrong = [
        f"{module} (layer {_layer(module)}) imports {name} (layer {_layer(name)})"
        for module in MODULES
        for name in _imports(module)
        if _layer(name) > _layer(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_no_circles() -> None:
    assert not _circles({module: _imports(module) for module in MODULES})
