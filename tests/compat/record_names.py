"""Record MXNet 1.9.1's public names with their arguments and methods: `python -m tests.compat.record_names`.

It runs with MXNet's Python.
A name counts where MXNet defines it or lists it in `__all__`, not where a module only imports it.
"""

import importlib
import inspect
import json
import types
from pathlib import Path

MODULES = [
    "attribute",
    "base",
    "callback",
    "context",
    "contrib.ndarray",
    "contrib.onnx",
    "contrib.svrg_optimization.svrg_module",
    "contrib.symbol",
    "contrib.text.embedding",
    "contrib.text.utils",
    "contrib.text.vocab",
    "engine",
    "executor",
    "executor_manager",
    "image",
    "initializer",
    "io",
    "kvstore",
    "libinfo",
    "lr_scheduler",
    "metric",
    "misc",
    "model",
    "module",
    "monitor",
    "name",
    "ndarray",
    "ndarray.image",
    "ndarray.linalg",
    "ndarray.random",
    "operator",
    "optimizer",
    "profiler",
    "random",
    "recordio",
    "rnn",
    "rtc",
    "runtime",
    "symbol",
    "symbol.image",
    "symbol.linalg",
    "symbol.random",
    "test_utils",
    "util",
    "visualization",
]
NAMES = Path(__file__).with_name("mxnet_names.json")


def parameters(function):
    """Names of a function's arguments; None where Python cannot tell."""
    try:
        taken = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [one.name for one in taken if one.name != "self" and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def described(thing):
    """What of a name can be compared: its kind, its arguments, and of a class its methods and properties."""
    if not inspect.isclass(thing):
        return {"kind": "function", "arguments": parameters(thing)} if callable(thing) else {"kind": "value"}
    members = {}
    for name, member in inspect.getmembers(thing):
        defined = any(name in vars(base) and base.__module__.startswith("mxnet") for base in thing.__mro__)
        if not name.startswith("_") and defined:
            members[name] = parameters(member) if callable(member) else None
    return {"kind": "class", "arguments": parameters(thing.__init__), "members": members}


def public(name):
    """The public names of a module."""
    module = importlib.import_module(f"mxnet.{name}")
    listed = getattr(module, "__all__", None)
    names = {}
    for one in sorted(listed or vars(module)):
        thing = getattr(module, one, None)
        home = getattr(thing, "__module__", None) or ""
        if one.startswith("_") or isinstance(thing, types.ModuleType):
            continue
        if listed is not None or home == module.__name__ or home.startswith(f"{module.__name__}."):
            names[one] = described(thing)
    return names


if __name__ == "__main__":
    names_by_module = {name: public(name) for name in MODULES}
    lines = [
        f'"{name}": {{\n' + ",\n".join(f"{json.dumps(one)}: {json.dumps(names[one])}" for one in names) + "\n}"
        for name, names in names_by_module.items()
    ]
    NAMES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print({name: len(names) for name, names in names_by_module.items()})
