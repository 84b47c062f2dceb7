"""What a newcomer waits for, and what an idle server takes: import, `opbox --help`, a server's start and idling, sizes.

    python benchmarks/first_hour.py [--base TREE] [--rounds 5] [--idle 30] [--install]

Without `--install`, the programs are those of `.venv` in each tree, as `make demo` or `make test` left it. Processor
seconds are those of a process and of all that it started, user and system together, the least of some rounds: other
programs on the machine count little. `--idle` is how many seconds a server that nobody calls is watched: all of its
processes together, as a share of one core. `--install` installs what `make demo` does anew, in a clone of each tree,
and prints its processor seconds and MB; it needs an index of packages, and takes minutes. `--base` is the root of
another checkout, measured after this one.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parents[1]
# With bytecode, as on anybody's machine from the second start on: without it a start compiles every module anew.
LEFT_OUT = ("OPBOX_", "PYTHONDONTWRITEBYTECODE")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
PROGRAMS = {
    "import opbox": ["-c", "import opbox"],
    "import opbox, and a Symbol": [
        "-c",
        "import opbox as mx; mx.sym.FullyConnected(mx.sym.Variable('x'), num_hidden=3)",
    ],
    "opbox --help": ["-m", "opbox.cli", "--help"],
    "python alone": ["-c", "pass"],
}


def spent(command: list[str], folder: Path) -> float:
    """Processor seconds of a program and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def processor_seconds(pid: int) -> float:
    """What a process and those below it have taken so far."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def serve(python: Path, idle: float) -> tuple[float, float, float]:
    """Processor and wall seconds until a server serves, and the share of a core that it takes for `idle` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "opbox_service.serve", "--port", "0"]
        environment = ENVIRONMENT | {"OPBOX_RUNTIME_DIR": folder, "OPBOX_STATE_DIR": folder}
        begun = time.monotonic()
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as server:
            assert server.stdout is not None
            if not server.stdout.readline():
                raise SystemExit(f"{' '.join(command)}: ended before it served")
            wall = time.monotonic() - begun
            started = processor_seconds(server.pid)
            share = 0.0
            if idle:
                time.sleep(10)  # what begins in the background, as a spare process for code
                before = processor_seconds(server.pid)
                time.sleep(idle)
                share = (processor_seconds(server.pid) - before) / idle
            server.send_signal(signal.SIGTERM)
            server.stdout.read()
    return started, wall, share


def install(tree: Path) -> tuple[float, float]:
    """Processor seconds and MB of what `make demo` installs, in a clone."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "-q", tree, clone], check=True)
        target = ".venv/.packages" if ".packages:" in (clone / "Makefile").read_text() else ".venv/.ready"
        seconds = spent(["make", "-s", target], clone)
        size = subprocess.run(["du", "-sm", ".venv"], cwd=clone, check=True, capture_output=True, text=True).stdout
        return seconds, float(size.split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, help="the root of another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=30, metavar="SECONDS")
    parser.add_argument("--install", action="store_true", help="measure what make demo installs, too")
    options = parser.parse_args()
    trees = [HERE, *([options.base.resolve()] if options.base else [])]
    columns: list[dict[str, str]] = []
    for tree in trees:
        python = tree / ".venv" / "bin" / "python"
        rows = {
            name: f"{min(spent([str(python), *words], tree) for _ in range(options.rounds)):.3f} s"
            for name, words in PROGRAMS.items()
        }
        serve(python, 0)  # it leaves the bytecode
        starts = [serve(python, 0) for _ in range(options.rounds - 1)]
        idling = serve(python, options.idle)
        started, wall, _ = min([*starts, idling])
        rows["a server's start"] = f"{started:.2f} s"
        rows["the same, by the clock"] = f"{wall:.2f} s"
        rows[f"an idle server, {options.idle:g} s"] = f"{100 * idling[2]:.2f} % of a core"
        if options.install:
            seconds, size = install(tree)
            rows["make demo installs"] = f"{size:g} MB"
            rows["installing it"] = f"{seconds:.0f} s"
        columns.append(rows)
    print(f"{'':28}{'this tree':>20}{'base':>20}" if options.base else f"{'':28}{'this tree':>20}")
    for name in columns[0]:
        print(f"{name:28}" + "".join(f"{rows[name]:>20}" for rows in columns))


if __name__ == "__main__":
    main()
