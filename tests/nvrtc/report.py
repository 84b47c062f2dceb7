"""Registers, spills, shared memory of every kernel that CuPy or we generate, by real NVRTC, and what ours move.

    make kernels                                # which runs: python -m tests.nvrtc.report FOLDER
    make kernels OWN=1                          # ours alone, without the folder

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
from opbox_ops.cuda.cubins import OPTIONS
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


def _includes() -> tuple[str, ...]:
    """Options that say where CuPy's headers are."""
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


@dataclass(frozen=True)
class Text:
    """CUDA source, the compiler's options for it, and where it comes from."""

    origin: str
    source: str
    options: tuple[str, ...]


def texts_in_folder(folder: Path) -> list[Text]:
    """The texts that the pretend GPU has kept in a folder."""
    includes, texts = _includes(), []
    for path in sorted(folder.glob("*.cu")):
        first, _, source = path.read_text("utf-8").partition("\n")
        options = (option for option in json.loads(first[3:]) if not option.startswith(("--gpu-arch", "-arch")))
        texts.append(Text(path.name, source, (*options, *includes, "-default-device")))
    return texts


def own_texts() -> list[Text]:
    """The texts of opbox's own kernels, for float32."""
    registry.load()
    return [Text(kernel.name, kernel.source("float32"), (*OPTIONS, *kernel.options)) for kernel in KERNELS]


def compiled(text: Text) -> tuple[list[Figures], str | None]:
    """The figures of a text, and why it is refused."""
    logs = {}
    for architecture in ARCHITECTURES:
        try:
            logs[architecture] = compile_for(architecture, text.source, (*text.options, "--ptxas-options=-v"))[1]
        except CompileError as error:
            return [], f"{text.origin}: {architecture}: {str(error)[:500]}"
    return list(figures(logs[_SHOWN])), None


def print_moved() -> None:
    """A line for each kernel of our own: what it moves at a size that networks have, and the least that any could."""
    registry.load()
    print(f"\n{'kernel of our own':36} {'for':54} {'bytes moved':>12} {'the least':>12} ratio")
    for kernel in KERNELS:
        what, moved = kernel.example
        both = moved()
        print(f"{kernel.name:36} {what:54} {both.bytes:12} {both.least:12} {both.bytes / both.least:5.2f}")


def main(folder: str | None = None) -> int:
    """Compile all texts of a folder, or our own, and print a line for each kernel, the hungriest first."""
    texts = own_texts() if folder is None else texts_in_folder(Path(folder))
    kernels: list[Figures] = []
    refused = []
    with ThreadPoolExecutor() as pool:
        for of_text, reason in pool.map(compiled, texts):
            kernels += of_text
            if reason is not None:
                refused.append(reason)
    print(f"{'kernel':60} registers stack spills shared")
    for kernel in sorted(set(kernels), key=lambda k: (-k.spills, -k.stack, -k.registers, k.name)):
        print(f"{kernel.name:60} {kernel.registers:9} {kernel.stack:5} {kernel.spills:6} {kernel.shared:6}")
    spilling = sum(kernel.spills > 0 for kernel in kernels)
    print(f"{len(texts)} texts, {len(kernels)} kernels for {', '.join(ARCHITECTURES)}; {spilling} spill")
    for line in refused:
        print(f"refused: {line}")
    print_moved()
    return 1 if refused or not texts else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
