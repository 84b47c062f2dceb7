"""Write what the client knows of the operators and of a server's settings: its catalogue and type stubs.

python -m opbox_service.schema            # write
python -m opbox_service.schema --check    # fail when what is there is not current
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import opbox
from opbox import NDArray, Symbol
from opbox._schema import stubs
from opbox.ndarray.fluent import ArrayFluent
from opbox.symbol.fluent import SymbolFluent
from opbox_ops import registry

from .environment import setting_names

__all__ = ["catalogue", "files", "main"]


def catalogue() -> dict[str, Any]:
    """Every operator that a user may call, as `GET /v1/ops` tells them."""
    registered = [registry.get(name) for name in registry.names()]
    operators = [op.json() for op in registered if not op.is_backward and not op.name.startswith("_backward")]
    for operator in operators:
        # Which computes there are depends on the server.
        del operator["levels"]
    return {"operators": operators}


def files() -> dict[Path, str]:
    """The text of each generated file of the client, by its path."""
    root = Path(opbox.__file__).parent
    operators = catalogue()["operators"]
    lines = ",\n".join(json.dumps(operator, separators=(", ", ": "), ensure_ascii=False) for operator in operators)
    methods = {package: _written_methods(kind) for package, kind in (("symbol", Symbol), ("ndarray", NDArray))}
    texts = {
        root / "_schema" / "operators.json": '{"operators": [\n' + lines + "\n]}\n",
        root / "_schema" / "settings.json": json.dumps(setting_names(), indent=1) + "\n",
    }
    return texts | {root / name: text for name, text in stubs.files(operators, methods).items()}


def _written_methods(tensor: type) -> set[str]:
    """The methods of a class of tensors that are no operators of the catalogue."""
    return {name for kind in tensor.__mro__[:-1] if kind not in (ArrayFluent, SymbolFluent) for name in vars(kind)}


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with `--check` compare them."""
    parser = argparse.ArgumentParser(prog="python -m opbox_service.schema", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not current")
    check = parser.parse_args(arguments).check
    stale = [path for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            sys.stderr.write(f"{path}: not current; run python -m opbox_service.schema\n")
        else:
            path.write_text(files()[path], encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
