"""Compiles the kernels of fixed texts into one shared library for each instruction set, when the distribution is built.

    avx2.so  avx512.so  amx.so

`ops/setup.py` calls `build`; `built_kernels` loads the best library that the processor runs. A function's symbol is its
name and a hash of the text that it was compiled from, so that a library of other sources has none of today's symbols.
Libraries link nothing but the C library: threads come by function pointers (`threads.c`).

This file and `kernel_text` use Python's own library alone: a build has no other packages.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .kernel_text import kernel_text

__all__ = ["EXACT", "INSTRUCTION_SETS", "UNITS", "InstructionSet", "Unit", "build", "build_compiler", "symbol", "whole"]

EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing")
"""Options by which a text has the same results on every processor with the same vectors, and NumPy's."""
_OPTIONS = ("-O3", "-std=gnu11", "-fPIC", "-w", *EXACT)
_LINKED = ("-shared", "-s", "-Wl,-z,defs", "-Wl,-Bsymbolic", "-Wl,--build-id=none")
_THREADS = "/* in threads */"
"""The first line of a text with loops for OpenMP."""
_EXPORTED = re.compile(r"^(?:void|int) (\w+)\(", re.MULTILINE)


def whole(text: str, threads: bool) -> str:
    """Return the text as it is compiled and hashed; with `threads` it has loops for OpenMP."""
    return f"{_THREADS}\n{text}" if threads else text


def symbol(text: str, name: str) -> str:
    """Return the symbol of the function `name` of a `whole` text."""
    content = "\0".join((text, *_OPTIONS))
    return f"{name}_{hashlib.sha256(content.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Unit:
    """A file of `kernels` with the macros that it is compiled with.

    Attributes:
        file: its name.
        definitions: macros and their values.
        threads: whether it has loops for OpenMP.
        needs_unit: whether it is for processors with a matrix unit alone.
    """

    file: str
    definitions: tuple[tuple[str, str | int], ...] = ()
    threads: bool = True
    needs_unit: bool = False

    @property
    def text(self) -> str:
        """The `whole` text."""
        return whole(kernel_text(self.file, **dict(self.definitions)), self.threads)


UNITS = (
    *[Unit("added_rows.c", (("NUMBER", t),), False) for t in ("float", "double", "unsigned", "unsigned long")],
    Unit("blocked_product.c"),
    Unit("column_sums.c"),
    Unit("joined_rows.c"),
    Unit("layer_norm.c", (("BLOCK", 32),)),
    Unit("lrn.c", (("MAX_NEIGHBOURS", 15),)),
    *[Unit("max_pooling.c", definitions) for definitions in ((), (("FLOAT16", 1),), (("BFLOAT16", 1),))],
    Unit("norm_numbers.c", threads=False),
    Unit("norm_sweeps.c"),
    Unit("pauses.c", threads=False),
    Unit("recurrent_cells.c"),
    Unit("short_rows.c"),
    *[
        Unit("softmax_rows.c", (("W", number), ("I", whole)))
        for number, whole in (("float", "int"), ("double", "long"))
    ],
    Unit("stacked_rows.c"),
    Unit("unit_steps.c", needs_unit=True),
    Unit("vector_functions.c", threads=False),
    *[Unit("weighted_rows.c", (("NUMBER", number),), False) for number in ("float", "double")],
    Unit("window_sums.c"),
    *[Unit("winograd.c", (("TAPS", taps),)) for taps in (3, 5)],
)
"""All texts that are compiled before anybody asks for them; formulas of a graph are generated, and are not here."""


@dataclass(frozen=True)
class InstructionSet:
    """What a library's kernels are compiled for.

    Attributes:
        name: the library's file, without its suffix.
        options: the compiler's.
        flags: Linux's names for what a processor must have.
    """

    name: str
    options: tuple[str, ...]
    flags: frozenset[str]

    @property
    def file(self) -> str:
        return f"{self.name}.so"


_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
INSTRUCTION_SETS = (
    InstructionSet("amx", ("-march=x86-64-v4", "-mamx-tile", "-mamx-bf16"), _AVX512 | {"amx_tile", "amx_bf16"}),
    InstructionSet("avx512", ("-march=x86-64-v4",), _AVX512),
    InstructionSet("avx2", ("-march=x86-64-v3",), _AVX2),
)
"""The best ones first."""


def build_compiler() -> str | None:
    """Return the path of GCC; None where there is none, or the machine is not one that libraries are built for."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    for path in filter(None, map(shutil.which, ("gcc", "cc"))):
        words = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stderr
        if "gcc version" in words:  # another compiler's OpenMP calls another library
            return path
    return None


def build(
    compiler: str, folder: Path, sets: Iterable[InstructionSet] = INSTRUCTION_SETS, units: Iterable[Unit] = UNITS
) -> dict[str, str]:
    """Write the libraries to `folder`, and return why a set has none: the compiler's words by the set's name.

    Example:
        >>> build("gcc", Path("build"), units=[Unit("column_sums.c")])
        {}
    """
    failures, units = {}, tuple(units)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        places = {instructions: Path(scratch, instructions.name) for instructions in sets}
        objects = {
            instructions: [
                pool.submit(_object, compiler, instructions, unit, place / f"{number}.o")
                for number, unit in enumerate(units)
                if not unit.needs_unit or "amx_tile" in instructions.flags
            ]
            for instructions, place in places.items()
        }
        for instructions, compiled in objects.items():
            try:
                files = [one.result() for one in compiled]
                threads = _run(compiler, instructions, kernel_text("threads.c"), places[instructions] / "threads.o")
                target = str(folder / instructions.file)
                subprocess.run(
                    [compiler, *_LINKED, *map(str, (*files, threads)), "-o", target], capture_output=True, check=True
                )
            except subprocess.CalledProcessError as error:
                failures[instructions.name] = error.stderr.decode(errors="replace").strip()
    return failures


def _object(compiler: str, instructions: InstructionSet, unit: Unit, target: Path) -> Path:
    """Compile a unit, its functions under their symbols."""
    text = unit.text
    names = sorted(set(_EXPORTED.findall(text)))
    renamed = [f"-D{name}={symbol(text, name)}" for name in names]
    return _run(compiler, instructions, text, target, *renamed, *(["-fopenmp"] if unit.threads else []))


def _run(compiler: str, instructions: InstructionSet, text: str, target: Path, *options: str) -> Path:
    target.parent.mkdir(exist_ok=True)
    command = [compiler, *_OPTIONS, *instructions.options, *options, "-c", "-x", "c", "-", "-o", str(target)]
    subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return target
