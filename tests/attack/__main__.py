"""Run the attacks, each on a server of its own with a user beside it, and print what each came to.

    python -m tests.attack [--only REGEX] [--python OTHER] [--json]

For each: whether the server was safe, the growth of the API process's memory during the attack and five seconds after
it, the attack's time, the other user's steps, failed steps and longest wait. `--python` names the Python of another
installation, such as that of an older version. Exit status 1 where an attack did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.attack.attack import MIB, Attack, Outcome, attacks
from tests.attack.box import Box
from tests.contract.live import TOKENS

REST_S = 5.0
"""Seconds in which a server gives back what an attack took."""
STOP_S = 60.0


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    does: str
    safe: bool
    says: str
    grew_mib: float
    kept_mib: float
    seconds: float
    steps: int
    failed: int
    longest_wait_s: float


class Neighbour:
    """The user beside the attack, in a process of its own."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.neighbour", url, TOKENS["ann"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPBOX_PATIENCE": "5"},
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def end(self) -> tuple[int, int, float]:
        """Steps, failed ones, and the longest wait; it counts as endless where the user got no answer any more."""
        try:
            text, _ = self._process.communicate(timeout=STOP_S)
            steps, failed, longest = text.split()
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()
            return 0, 1, float("inf")
        return int(steps), int(failed), float(longest)


def run(attack: Attack, python: str) -> Row:
    """Run an attack on a server of its own."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        box = Box(Path(folder), python, **attack.settings)
        beside = Neighbour(box.live.url)
        box.most = before = box.memory()
        outcomes: list[Outcome] = []

        def attempt() -> None:
            try:
                outcomes.append(attack.run(box))
            except Exception as error:
                outcomes.append(Outcome(False, f"{type(error).__name__}: {error}"))

        began = time.monotonic()
        attacker = threading.Thread(target=attempt, daemon=True)
        attacker.start()
        attacker.join(attack.limit_s)
        seconds = time.monotonic() - began
        outcome = outcomes[0] if outcomes else Outcome(False, f"not at its end after {attack.limit_s:g} s")
        until = time.monotonic() + REST_S
        while box.memory() > before + attack.keeps and time.monotonic() < until:
            time.sleep(0.1)
        growth_left, grew = box.memory() - before, box.most - before
        steps, failed, longest = beside.end()
        says = [outcome.says]
        if grew > attack.grows:
            says.append(f"grew by more than {attack.grows / MIB:.0f} MiB")
        if growth_left > attack.keeps:
            says.append(f"kept more than {attack.keeps / MIB:.0f} MiB")
        if failed:
            says.append("the other user's steps failed")
        if longest > attack.waits_s:
            says.append(f"the other user waited for more than {attack.waits_s:g} s")
        try:
            status = box.stop()
        except subprocess.TimeoutExpired:
            box.live.process.kill()
            says.append("the server did not stop")
        else:
            if status:
                says.append(f"the server's exit status was {status}")
        safe = outcome.safe and len(says) == 1
        row = grew / MIB, growth_left / MIB, seconds, steps, failed, longest
        return Row(attack.name, attack.does, safe, "; ".join(says), *row)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="attacks whose name matches")
    parser.add_argument("--python", default=sys.executable, help="Python of the installation to attack")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each, with all fields")
    options = parser.parse_args()
    if not options.json:
        heads = "attack", "safe", "grew MiB", "kept", "time s", "steps", "wait s"
        print("{:24} {:4} {:>8} {:>6} {:>6} {:>5} {:>6}  what happened".format(*heads))
    every = True
    for attack in attacks():
        if not re.search(options.only, attack.name):
            continue
        row = run(attack, options.python)
        every &= row.safe
        if options.json:
            print(json.dumps(asdict(row)), flush=True)
            continue
        figures = f"{row.grew_mib:8.0f} {row.kept_mib:6.0f} {row.seconds:6.1f} {row.steps:5} {row.longest_wait_s:6.2f}"
        print(f"{row.name:24} {'yes' if row.safe else 'NO':4} {figures}  {row.says}", flush=True)
    return 0 if every else 1


if __name__ == "__main__":
    sys.exit(main())
