"""Registers, spills, shared memory of every kernel that CuPy or we generate, by real NVRTC, and what ours move.

    make kernels                                # which runs: python -m tests.nvrtc.report FOLDER

The folder has CUDA texts as the pretend GPU keeps them (PRETEND_GPU_SOURCES), each with the options that CuPy gave.
Each is compiled for every architecture; the figures are those of sm_90. Exits with 1 when a text is refused.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opbox_ops import registry
from opbox_ops.cuda.kernel import KERNELS
from opbox_ops.cuda.nvrtc import ARCHITECTURES, CompileError, compile_for

__all__ = ["Figures", "main"]

_SHOWN = "sm_90"
_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Figures:
    """One kernel.

    Attributes:
        name: the kernel's.
        registers: of a thread.
        stack, spills: bytes of a thread: its stack frame, and what is stored and loaded for want of registers.
        shared: bytes of a block.
    """

    name: str
    registers: int
    stack: int
    spills: int
    shared: int


def _options() -> tuple[str, ...]:
    [cupy] = importlib.util.find_spec("cupy").submodule_search_locations  # type: ignore[union-attr, misc]  # it is installed
    own = Path(cupy, "_core", "include")
    parts = ("", "cupy/_cccl/libcudacxx", "cupy/_cccl/thrust", "cupy/_cccl/cub")
    return tuple(f"-I{own / part}" for part in parts)


def figures(log: str) -> Iterator[Figures]:
    """What the assembler says of each kernel."""
    for part in log.split("Compiling entry function")[1:]:
        name = _FUNCTION.match(f"Compiling entry function{part}")
        used, spills, shared = _USED.search(part), _SPILLS.search(part), _SHARED.search(part)
        if name is not None and used is not None:
            stack, stores, loads = map(int, spills.groups()) if spills is not None else (0, 0, 0)
            yield Figures(name[1], int(used[1]), stack, stores + loads, int(shared[1]) if shared is not None else 0)


def compiled(path: Path) -> tuple[list[Figures], str | None]:
    """The figures of a text, and why it is refused."""
    first, _, source = path.read_text("utf-8").partition("\n")
    options = [option for option in json.loads(first[3:]) if not option.startswith(("--gpu-arch", "-arch"))]
    logs = {}
    for architecture in ARCHITECTURES:
        try:
            logs[architecture] = compile_for(
                architecture, source, (*options, *_options(), "-default-device", "--ptxas-options=-v")
            )[1]
        except CompileError as error:
            return [], f"{architecture}: {error}"
    return list(figures(logs[_SHOWN])), None


def print_moved() -> None:
    """A line for each kernel of our own: what it moves at a size that networks have, and the least that any could."""
    registry.load()
    print(f"\n{'kernel of our own':30} {'for':38} {'bytes moved':>12} {'the least':>12} ratio")
    for kernel in KERNELS:
        what, moved = kernel.example
        both = moved()
        print(f"{kernel.name:30} {what:38} {both.bytes:12} {both.least:12} {both.bytes / both.least:5.2f}")


def main(folder: str) -> int:
    """Compile all texts of a folder and print a line for each kernel, the hungriest first."""
    paths = sorted(Path(folder).glob("*.cu"))
    kernels: list[Figures] = []
    refused = []
    with ThreadPoolExecutor() as pool:
        for path, (of_text, reason) in zip(paths, pool.map(compiled, paths), strict=True):
            kernels += of_text
            if reason is not None:
                refused.append(f"{path.name}: {reason[:500]}")
    print(f"{'kernel':60} registers stack spills shared")
    for kernel in sorted(set(kernels), key=lambda k: (-k.spills, -k.stack, -k.registers, k.name)):
        print(f"{kernel.name:60} {kernel.registers:9} {kernel.stack:5} {kernel.spills:6} {kernel.shared:6}")
    spilling = sum(kernel.spills > 0 for kernel in kernels)
    print(f"{len(paths)} texts, {len(kernels)} kernels for {', '.join(ARCHITECTURES)}; {spilling} spill")
    for line in refused:
        print(f"refused: {line}")
    print_moved()
    return 1 if refused or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
