"""Record what MXNet 1.9.1 answers to the programs: `python -m tests.compat.record [NAME …]`, with MXNet's Python."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOT_RUN = ("ndarray_softmax", "numpy_softmax")
"""MXNet 1.9.1 crashes in these, or loses shapes: `custom_softmax` is the same network."""


def answer(program: Path) -> object:
    """The last line that a program prints, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, str(program)], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program.name}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    for path in sorted((HERE / "programs").glob("*.py")):
        if path.stem in sys.argv[1:] or (len(sys.argv) == 1 and path.stem not in NOT_RUN):
            recorded = HERE / "recorded" / f"{path.stem}.json"
            recorded.write_text(json.dumps(answer(path), indent=1) + "\n")
            print(path.stem)
