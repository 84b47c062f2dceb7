"""Many inputs at one target, in processes of their own; prints each kind of fault when it is met, and how far it is.

python -m tests.fuzz.campaign operators --inputs 100000 --jobs 2
python -m tests.fuzz.campaign operators --input 0a1b2c       # again
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from opbox_protocol.collector import begin_tending, tend
from tests.fuzz.targets import TARGETS, Fault, check, engine

__all__ = ["GROWTH", "Outcome", "inputs", "run"]

GROWTH = 256 << 20
"""Bytes by which a process may grow after its first inputs."""
WARM = 300
"""The first inputs, or a fourth of them where there are few: the process grows by what it loads then."""
TEND_S = 1.0
"""How often a worker process looks after its garbage; so does a campaign's."""
PROGRESS_S = 30.0
"""How often a campaign prints how far it is: one that is stopped, or crashes, has shown what it knew."""


def inputs(target: str, seed: int, count: int) -> list[bytes]:
    """Inputs from a seed; many are short, as later choices are then the first of each."""
    source = random.Random(f"{target} {seed}")
    return [source.randbytes(source.choice((4, 16, 48, 200))) for _ in range(count)]


class Outcome:
    """What a run came to.

    Attributes:
        faults: by where they arose, the first input of each, and what happened.
        growth: of the process's memory, in bytes.
        count: inputs that were sent.
    """

    def __init__(self) -> None:
        self.faults: dict[str, tuple[bytes, str]] = {}
        self.growth = 0
        self.count = 0


def place_of(fault: Fault) -> str:
    """Where a fault arose: the last line of ours."""
    frames = traceback.extract_tb((fault.__cause__ or fault).__traceback__)
    ours = [frame for frame in frames if "opbox" in frame.filename] or list(frames)
    return f"{type(fault.__cause__).__name__} {Path(ours[-1].filename).name}:{ours[-1].lineno}"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def run(
    target: str,
    data: list[bytes],
    current: Path | None = None,
    seconds: float = float("inf"),
    report: Callable[[str], object] = lambda line: None,
    *,
    tending: bool = False,
) -> Outcome:
    """Send the inputs, for at most so many seconds.

    Args:
        target: what they are sent at.
        data: the inputs.
        current: a file that has the input at hand, should the process crash.
        seconds: of the clock; infinite by default.
        report: gets a line for each kind of fault, and every PROGRESS_S one that says how far the run is.
        tending: whether `begin_tending` has been called, as in a worker process.
    """
    outcome, before, end = Outcome(), 0, time.monotonic() + seconds
    reported = tended = time.monotonic()
    for number, piece in enumerate(data):
        if number == min(WARM, len(data) // 4):
            before = resident()
        if time.monotonic() > end:
            break
        if current is not None:
            current.write_bytes(piece)
        outcome.count += 1
        try:
            check(target, piece)
        except Fault as fault:
            place = place_of(fault)
            if place not in outcome.faults:
                outcome.faults[place] = piece, str(fault)
                report(f"{target}: {line_of(place, piece, str(fault))}")
        if tending and time.monotonic() > tended + TEND_S:
            tend()
            tended = time.monotonic()
        if time.monotonic() > reported + PROGRESS_S:
            reported = time.monotonic()
            grown = (resident() - before) >> 20 if before else 0
            report(f"{target}: {outcome.count} inputs, {len(outcome.faults)} kinds of faults, grown by {grown} MB")
    outcome.growth = resident() - before if before else 0
    return outcome


def line_of(place: str, piece: bytes, sentence: str) -> str:
    """A fault and the input that shows it, for who wants to see it again."""
    return f"{place}: {sentence[:300]}\n    --input {piece.hex()}"


def work(target: str, seed: int, count: int, seconds: float, current: Path, answers: multiprocessing.Queue) -> None:
    engine()
    begin_tending()
    outcome = run(
        target, inputs(target, seed, count), current, seconds, lambda line: print(line, flush=True), tending=True
    )
    answers.put((outcome.faults, outcome.growth, outcome.count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=10_000, help="of each process")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--input", type=bytes.fromhex)
    options = parser.parse_args()
    if options.input is not None:
        check(options.target, options.input)
        return 0
    spawn = multiprocessing.get_context("spawn")
    faults: dict[str, tuple[bytes, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs, total = [], 0
        for job in range(options.jobs):
            answers, current = spawn.Queue(), Path(folder, str(job))
            arguments = (options.target, options.seed + job, options.inputs, options.seconds, current, answers)
            process = spawn.Process(target=work, args=arguments)
            process.start()
            jobs.append((process, answers, current))
        for process, answers, current in jobs:
            while process.is_alive() and answers.empty():
                time.sleep(0.2)
            if answers.empty():
                faults[f"crash {process.exitcode}"] = current.read_bytes(), f"the process ended: {process.exitcode}"
                continue
            of_process, growth, count = answers.get()
            total += count
            faults |= of_process
            if growth > GROWTH:
                faults["growth"] = b"", f"the process grew by {growth >> 20} MB"
            process.join()
    for place, (piece, sentence) in faults.items():
        print(line_of(place, piece, sentence))
    print(f"{options.target}: {total} inputs, {len(faults)} kinds of faults", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
