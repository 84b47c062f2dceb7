"""Which part of each suite runs in `make test` and `.ci/run`; `make test-all` runs every suite whole.

`OPBOX_TEST_SLICE=SUITE` chooses the suite's slice; without it every test runs. A run prints what it left out.
A rule of `OneIn` rotates with the contents of the sources, so that other tests run after each change;
`OPBOX_TEST_SLICE=SUITE:NUMBER` repeats the slice of that number.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

VARIABLE = "OPBOX_TEST_SLICE"
ROOT = Path(__file__).parents[1]
FOLDERS = ("protocol", "ops", "client", "service", "tests")
SOURCES = {".py", ".c", ".h", ".cu", ".js", ".toml"}
SLICES = 27720
"""Number of slices: a multiple of every number up to 12, and of 40."""


@dataclass(frozen=True)
class Call:
    """A test of a parametrized function: its name and its parameters."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> str:
        """The name without the parameters: "tests/ops/test_x.py::test_y"."""
        return self.name.partition("[")[0]


class Rule(Protocol):
    """How the tests of some functions are thinned."""

    def choose(self, calls: Sequence[Call], number: int) -> list[Call]:
        """Return those that run in the slice of that number."""


def anything(call: Call) -> object:
    """Return the group of a test where all tests are in one."""
    return None


def function_of(call: Call) -> object:
    """Return the group of a test where each function has its own."""
    return call.function


def operator_of(call: Call) -> object:
    """Return the group of a test where each function has one for each operator of the operator table."""
    return call.function, getattr(call.parameters.get("case"), "op", None)


@dataclass(frozen=True)
class OneIn:
    """Of each group every so many tests one, at least one; which, rotates with the number of the slice."""

    number: int
    group: Callable[[Call], object] = anything

    def choose(self, calls: Sequence[Call], number: int) -> list[Call]:
        """Return every `self.number`-th test of each group, beginning with the slice's."""
        groups: dict[object, list[Call]] = {}
        for call in calls:
            groups.setdefault(self.group(call), []).append(call)
        chosen: list[Call] = []
        for at, group in enumerate(groups.values()):
            step = min(self.number, len(group))
            chosen += group[(at + number) % step :: step]
        return chosen


def pairs_of(call: Call) -> Iterable[object]:
    """Return all pairs of a test's parameters."""
    # By identity: an array is equal to no array, and a value's repr may have an address, which no other process has.
    values = [(name, id(value)) for name, value in call.parameters.items()]
    return combinations(values, 2) if len(values) > 1 else values


def rows_of_operators(call: Call) -> Iterable[object]:
    """Return what one row of the operator table shows: the row, and the operator with the type."""
    case = call.parameters["case"]
    return [case.id, (case.op, call.parameters["dtype"])]


@dataclass(frozen=True)
class Turns:
    """Each test in one of so many slices, be it the only one of its function: for folders that take minutes."""

    number: int

    def choose(self, calls: Sequence[Call], number: int) -> list[Call]:
        """Return every `self.number`-th test, beginning with the slice's; of a single one nothing in other slices."""
        return [call for at, call in enumerate(calls) if (at + number) % self.number == 0]


@dataclass(frozen=True)
class Alternating:
    """Of the tests that differ in one parameter alone, one; which, rotates with the number of the slice."""

    parameter: str

    def choose(self, calls: Sequence[Call], number: int) -> list[Call]:
        """Return one test of each group; all of what lacks the parameter."""
        groups: dict[object, list[Call]] = {}
        for call in calls:
            others = [(name, id(value)) for name, value in call.parameters.items() if name != self.parameter]
            alone = call.name if self.parameter not in call.parameters else call.function
            groups.setdefault((alone, *others), []).append(call)
        return [group[(at + number) % len(group)] for at, group in enumerate(groups.values())]


@dataclass(frozen=True)
class Covering:
    """As many tests as it takes to have everything that `shown` names of any: the same in every slice."""

    shown: Callable[[Call], Iterable[object]] = pairs_of

    def choose(self, calls: Sequence[Call], number: int) -> list[Call]:
        """Return the tests that show something which none before has shown; those with the most new first."""
        seen: set[object] = set()
        chosen: set[str] = set()
        features = {call.name: [(call.function, feature) for feature in self.shown(call)] for call in calls}
        for least in (3, 2, 1):  # three or more new pairs, then two, then one
            for call in calls:
                new = sum(feature not in seen for feature in features[call.name])
                if call.name not in chosen and (new >= least or not features[call.name]):
                    chosen.add(call.name)
                    seen.update(features[call.name])
        return [call for call in calls if call.name in chosen]


@dataclass(frozen=True)
class InTurn:
    """Of what another rule chooses, every so many tests one; which, rotates with the number of the slice."""

    number: int
    of: Rule

    def choose(self, calls: Sequence[Call], number: int) -> list[Call]:
        """Return every `self.number`-th of the rule's tests, beginning with the slice's."""
        chosen = self.of.choose(calls, number)
        return chosen[number % self.number :: self.number]


PAIRS = Covering()
ROWS = Covering(rows_of_operators)
SERVERS = Alternating("isolation")
OWNERS = Alternating("owner")
RULES: dict[str, dict[str, Rule]] = {
    "test": {
        "tests": PAIRS,
        # What a kernel leaves alone in memory hardly depends on the type: each row with one, each operator with all.
        # Few changes touch it: a third of these after each.
        "tests/ops/test_operator_table.py::test_requests": InTurn(3, ROWS),
        "tests/ops/test_operator_table.py::test_layouts": InTurn(3, ROWS),
        "tests/ops/test_operator_table.py::test_an_empty_batch": InTurn(3, ROWS),
        "tests/ops/test_operator_table.py::test_inference": InTurn(2, PAIRS),
        "tests/executor/test_unwritten_memory.py::test_no_result": InTurn(3, ROWS),
        # Each compiles a kernel, and test-gpu-pretend runs the same ones.
        "tests/ops/test_cuda_kernels.py::test_a_kernel_has_the_references_values": OneIn(4, operator_of),
        "tests/ops/test_cuda_rows.py::test_long_rows": OneIn(4, operator_of),
        "tests/ops/test_kernel_sizes.py": OneIn(3, operator_of),
        "tests/ops/test_swept.py::test_a_kernel_gives_numpys_bits": OneIn(4),
        "tests/ops/test_swept.py::test_threads_give_the_bits_of_one": OneIn(2),
        # Each starts a program or a server.
        "tests/compat/test_programs.py": Alternating("engine"),
        "tests/custom/test_examples.py": Alternating("run"),
        "tests/cluster/test_gateway_stop.py": OneIn(2, function_of),
        "tests/cluster/test_gateway_tls.py": OneIn(2, function_of),
        "tests/cluster/test_recovery.py": Alternating("scheme"),
        "tests/cluster/test_shared_graphs.py": OneIn(3),
        "tests/cluster/test_shared_models.py": OneIn(3),
        "tests/contract/test_accounts.py": Alternating("shared"),
        "tests/contract/test_checkpoints.py": SERVERS,
        "tests/contract/test_code_sessions.py": OWNERS,
        "tests/contract/test_groups.py": OneIn(3, function_of),
        "tests/contract/test_isolation.py": OneIn(2, function_of),
        "tests/contract/test_private_folder.py": OneIn(2, function_of),
        "tests/contract/test_program.py": SERVERS,
        "tests/contract/test_restart.py": SERVERS,
        "tests/training/test_several_workers.py": OneIn(2, function_of),
        "tests/contract/test_session_moves.py": SERVERS,
        # Each takes seconds, of which it waits for some: half of them after each change.
        "tests/attack": Turns(2),
        "tests/contract/test_isolation_further.py": Turns(3),
        "tests/contract/test_processor_shares.py::test_of": Turns(2),
        "tests/custom/test_notebook.py": Turns(2),
        "tests/custom/test_notebook_errors.py": Turns(2),
        "tests/examples": Turns(2),
        "tests/faults": Turns(2),
        "tests/gpu_check/test_wheels.py": Turns(2),
        "tests/link": OneIn(4, function_of),
        "tests/load": Turns(3),
        "tests/models/test_model_faults.py": Turns(3),
        "tests/onnx/test_node_cases.py": Alternating("fed"),
        "tests/ops/test_compile_errors.py::test_a_syntax_error_in_a_kernel_fails_its_tests": Turns(2),
        "tests/ops/test_sanitized_kernels.py::test_kernels_stay_within_their_arrays": Turns(3),
        "tests/training/test_examples.py": Turns(2),
        "tests/typing/test_type_checkers.py": Turns(2),
        "tests/service/test_forged_images.py": Turns(2),
        "tests/service/test_operator_files.py": Turns(2),
        "tests/service/test_steady_memory.py": SERVERS,
    },
    "nvrtc": {"tests/nvrtc/test_kernels.py": OneIn(8)},
    "test-gpu-pretend": {"tests": OneIn(8)},
    "test-page": {"tests/page": OneIn(4)},
    "pythons": {"tests/protocol": OneIn(4), "tests/client": OneIn(4), "tests/executor": OneIn(4)},
    "test-processors": {"tests": OneIn(12), "tests/ops/test_operator_table.py": OneIn(40)},
    "docs": {},
    "clients": {},
    "check-compose": {},
    "test-torch": {},
    "test-cluster": {},
    "test-bare": {},
}
"""By suite: the beginnings of tests' names, and how those are thinned; all others run. The longest beginning holds."""


@dataclass(frozen=True)
class Amount:
    """How often something is tried: in whole suites, and where only slices run."""

    whole: int
    part: int


AMOUNTS = {
    "interrupts": Amount(2000, 300),
    "interrupts of a notebook's cell": Amount(300, 100),
    "ends of a program with work pending": Amount(3, 1),
    "steps that leave memory flat": Amount(10_000, 4_000),
}


def suite() -> str | None:
    """Return the suite whose slice runs; None where tests run whole."""
    name = os.environ.get(VARIABLE, "").partition(":")[0]
    if name and name not in RULES:
        raise KeyError(f"{VARIABLE}: expected one of {', '.join(RULES)}, got {name!r}; see tests/slices.py")
    return name or None


def amount(of: str) -> int:
    """Return how often to try something that stands in AMOUNTS."""
    return AMOUNTS[of].whole if suite() is None else AMOUNTS[of].part


def settle() -> None:
    """Settle the slice's number before the processes of a run start, so that all have the same."""
    name = suite()
    if name is not None and ":" not in os.environ[VARIABLE]:
        os.environ[VARIABLE] = f"{name}:{number_of_sources()}"


def number_of_sources() -> int:
    """Return a number that changes with any source."""
    digest = hashlib.sha256()
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in SOURCES and file.is_file():
                digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:8]) % SLICES


def sliced(calls: Sequence[Call]) -> tuple[set[str], dict[str, str]]:
    """Return the names of the tests that run, and what is left out: "10 of 16" by function."""
    name = suite()
    if name is None:
        return {call.name for call in calls}, {}
    number = int(os.environ[VARIABLE].partition(":")[2] or 0)
    rules = RULES[name]
    groups: dict[str | None, list[Call]] = {}
    for call in calls:
        beginnings = [begin for begin in rules if call.name.startswith(begin)]
        groups.setdefault(max(beginnings, key=len, default=None), []).append(call)
    chosen: set[str] = set()
    for begin, group in groups.items():
        chosen |= {call.name for call in (group if begin is None else rules[begin].choose(group, number))}
    every = Counter(call.function for call in calls)
    runs = Counter(call.function for call in calls if call.name in chosen)
    return chosen, {f: f"{n - runs[f]} of {n}" for f, n in every.items() if runs[f] < n}


def report(left_out: dict[str, str]) -> list[str]:
    """Return a line for each file that says what a run left out of it, and lines of what was tried less often."""
    files: dict[str, list[str]] = {}
    for function, count in left_out.items():
        file, _, name = function.partition("::")
        files.setdefault(file, []).append(f"{name} {count}")
    lines = [f"{file}: {', '.join(functions)}" for file, functions in files.items()]
    lines += [f"{of}: {AMOUNTS[of].part} in place of {AMOUNTS[of].whole}" for of in AMOUNTS if suite() == "test"]
    return lines
