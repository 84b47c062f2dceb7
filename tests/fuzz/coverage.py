"""A campaign that is guided by which lines of ours an input reaches: atheris, which is libFuzzer for Python.

    make fuzz                                        # installs it, and runs this for every target among others
    python -m tests.fuzz.coverage operators CORPUS -max_total_time=60

Further arguments are libFuzzer's. A fault ends it; the input is written to a file crash-…, for
`python -m tests.fuzz.campaign TARGET --input HEX`.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["opbox_protocol", "opbox_service", "opbox_ops"]):
    from opbox_protocol.collector import begin_tending
    from tests.fuzz.targets import TARGETS, check, engine

__all__ = ["main"]


def main() -> None:
    target = sys.argv[1]
    if target not in TARGETS:
        raise SystemExit(f"expected one of {', '.join(TARGETS)}, got {target}")
    engine()
    begin_tending()
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: check(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
