"""Record what MXNet computes for the operator table. Run from the repository's root with MXNet's Python:

    .venv-mxnet/bin/python -m tests.conformance.record [--all] [family …]

A family is the name of a file in tests/cases/. Rows that are recorded already are passed over unless --all is given;
rows that are gone are dropped.
"""

from __future__ import annotations

import sys

from ..cases import families
from .recording import FOLDER, digest, read, recorded_dtypes, write

__all__ = ["record"]


def record(family: str, rows: list, again: bool) -> list[str]:
    """Bring the file of a family up to date; returns MXNet's refusals, a line each."""
    path = FOLDER / f"{family}.npz"
    before = {} if again else read(path)
    after, new, refused = {}, 0, []
    for case in rows:
        if case.random or not case.oracle:
            continue
        for dtype in recorded_dtypes(case):
            key = f"{case.id}|{dtype}"
            entry = before.get(key)
            if entry is None or entry.digest != digest(case, dtype):
                from .oracle import run_case

                entry, new = run_case(case, dtype), new + 1
            if entry.error is not None:
                refused.append(f"{key}: {entry.error}")
            after[key] = entry
    if after and (new or set(after) != set(before)):
        FOLDER.mkdir(exist_ok=True)
        write(path, after)
    elif not after and path.exists():
        path.unlink()
    print(f"{family}: {new} recorded, {len(after) - new} kept, {len(refused)} refused by MXNet")
    return refused


def main(arguments: list[str]) -> int:
    again = "--all" in arguments
    named = [argument for argument in arguments if not argument.startswith("-")]
    known = families()
    unknown = [name for name in named if name not in known]
    if unknown:
        print(f"no such family: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    refused = [line for name in named or known for line in record(name, known[name], again)]
    for line in refused:
        print(f"refused: {line}")
    if not named:
        for path in FOLDER.glob("*.npz"):
            if path.stem not in known:
                path.unlink()
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
