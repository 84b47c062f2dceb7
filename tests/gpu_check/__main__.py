"""python -m tests.gpu_check [--output FOLDER] [--only NAME]...: run the stages on this machine's GPU."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .machine import description
from .stages import Stage, run

__all__ = ["ENVIRONMENT", "stages"]

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "gpu-check"
SANITIZERS = {"memcheck": 40.0, "racecheck": 40.0, "synccheck": 30.0}
"""Tools of compute-sanitizer, and seconds for each: out-of-bounds accesses, races in shared memory, wrong barriers."""
UNMEASURED = {"OPBOX_CUDNN_TUNE": "off"}
"""No convolution gets another algorithm between two steps whose bits are compared."""
ENVIRONMENT = {"OPBOX_TEST_REQUIRE_GPU": "1", "OPBOX_GPU_SELFCHECK_S": "0"}
"""Of all stages. Selfcheck has a time of its own; at a program's first use of the GPU the others would wait for it."""
ON_DEVICES = ("devices", "code_on_devices", "isolation", "code_sessions")
"""What of the contract a device may change; the rest needs none, and takes many minutes."""


def stages() -> list[Stage]:
    """The stages, in order; within 10 minutes their limits leave time to install wheels and to ask the machine."""
    python = sys.executable
    parallel = ["-n", str(min(12, os.cpu_count() or 1))] if importlib.util.find_spec("xdist") else []
    # Warnings of the machine's own packages are not opbox's faults.
    pytest = [python, "-m", "pytest", "-W", "default", "-p", "tests.gpu_check.results", "--results={results}"]
    pytest += ["--stop-after={stop_after}", "--junit-xml={report}"]
    steps = [*pytest, "-m", "gpu", "tests/gpu_check/test_steps.py"]
    return [
        Stage("smoke", [python, "-m", "tests.gpu_check.smoke", "{figures}"], 50, variables=UNMEASURED),
        Stage("selfcheck", [python, "-m", "opbox.cli", "gpu-selfcheck", "--seconds", "50", "--again"], 60, ["smoke"]),
        Stage("steps", steps, 40, ["smoke"], variables=UNMEASURED),
        Stage("operators", [*pytest, *parallel, "-m", "gpu", "tests/ops"], 125, ["smoke"]),
        Stage(
            "system",
            [
                *pytest,
                *parallel,
                "-m",
                "not conformance and not image and not compose",
                *(f"tests/contract/test_{name}.py" for name in ON_DEVICES),
                "tests/client/test_foreign.py",
                "tests/service/test_device_sums.py",
            ],
            90,
            ["smoke"],
        ),
        *(_sanitizer(tool, limit_s, pytest) for tool, limit_s in SANITIZERS.items()),
        Stage("custom", [python, "benchmarks/custom_op_paths.py", "--gpu"], 25, ["smoke"], requires=False),
        Stage(
            "peers",
            [python, "benchmarks/gpu_vs_peers.py", "--seconds", "35", "--without", "HTTP", "--json", "{figures}"],
            60,
            ["smoke"],
            requires=False,
        ),
    ]


def _sanitizer(tool: str, limit_s: float, pytest: Sequence[str]) -> Stage:
    """One row of each operator under a tool of compute-sanitizer's: opbox's own kernels are among what they launch."""
    sanitizer = shutil.which("compute-sanitizer")
    rows = ["--first-rows", "-m", "gpu", "-k", "float32", "tests/ops/test_operator_table.py::test_gradient"]
    command = [str(sanitizer), "--tool", tool, "--error-exitcode", "9", *pytest, *rows]
    return Stage(tool, command, limit_s, ["smoke"], "" if sanitizer else "compute-sanitizer is not installed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    names = [stage.name for stage in stages()]
    parser.add_argument("--only", action="append", choices=names, help="a stage; smoke always runs")
    options = parser.parse_args()
    chosen = [s for s in stages() if not options.only or s.name in (*options.only, "smoke")]
    return run(chosen, options.output, description(), ENVIRONMENT)


if __name__ == "__main__":
    sys.exit(main())
