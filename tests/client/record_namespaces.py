"""Writes which functions MXNet 1.9.1 has in its modules of operators. Run by MXNet's Python:

python tests/client/record_namespaces.py tests/client/recorded/namespaces.json
"""

from __future__ import annotations

import json
import sys
from types import ModuleType

NAMESPACES = ("op", "contrib", "image", "linalg", "random", "_internal")


def functions(module: ModuleType) -> list[str]:
    """The functions of a module that are for users: none of MXNet's own workings, no gradients, nothing of numpy's."""
    hidden = ("_backward", "backward_", "_np", "_sg_", "_contrib_backward", "_cv", "_image", "_sparse")
    inside = module.__name__.endswith("._internal")
    return sorted(
        name
        for name, value in vars(module).items()
        if callable(value)
        and not isinstance(value, type)
        and not name.startswith("__")
        and name.startswith("_") == inside
        and not name.startswith(hidden)
    )


if __name__ == "__main__":
    import mxnet

    recorded = {}
    for package in ("sym", "nd"):
        root = getattr(mxnet, package)
        recorded[package] = functions(root)
        for namespace in NAMESPACES:
            recorded[f"{package}.{namespace}"] = functions(getattr(root, namespace))
        recorded[f"contrib.{package}"] = functions(getattr(mxnet.contrib, package))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(recorded, file, indent=0)
        file.write("\n")
