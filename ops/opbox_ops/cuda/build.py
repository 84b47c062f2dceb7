"""Compiles kernels of our own beforehand, by NVRTC and without a GPU.

    python -m opbox_ops.cuda.build FOLDER [--architecture sm_90]...

`cubins` says how they are named and found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import registry
from .cubins import OPTIONS, cubin_name
from .kernel import KERNELS, KernelTemplate
from .nvrtc import ARCHITECTURES, compile_for, missing, supported

__all__ = ["build"]


def build(
    folder: Path, architectures: Sequence[str] = ARCHITECTURES, kernels: Sequence[KernelTemplate] = KERNELS
) -> int:
    """Compile what is not there yet of every kernel, for every type and architecture; how many files there are then.

    Raises:
        CompileError: the compiler's log.
    """
    registry.load()  # the families' files add their kernels
    folder.mkdir(parents=True, exist_ok=True)
    sources = {(kernel.source(dtype), kernel.options) for kernel in kernels for dtype in kernel.types}
    wanted = {cubin_name(*source, a): (*source, a) for source in sources for a in architectures}

    def make(name: str) -> None:
        source, options, architecture = wanted[name]
        partial = folder / f"{name}.{os.getpid()}"
        partial.write_bytes(compile_for(architecture, source, (*OPTIONS, *options))[0])
        partial.replace(folder / name)

    with ThreadPoolExecutor() as pool:
        list(pool.map(make, [name for name in sorted(wanted) if not (folder / name).exists()]))
    for path in folder.glob("*.cubin"):
        if path.name not in wanted:
            path.unlink()
    return len(wanted)


def main(arguments: Sequence[str], kernels: Sequence[KernelTemplate] = KERNELS) -> int:
    """Compile the kernels for the architectures that the arguments name; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m opbox_ops.cuda.build", description="Compile opbox's CUDA kernels, by NVRTC and without a GPU."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="gets a file of each kernel, type and architecture")
    parser.add_argument(
        "--architecture",
        action="append",
        metavar="sm_NN",
        help=f"a GPU's architecture, such as sm_90 for an H100; may be repeated (default: {', '.join(ARCHITECTURES)})",
    )
    options = parser.parse_args(arguments)
    reason = missing()
    if reason is not None:
        parser.error(reason)
    architectures: list[str] = options.architecture or list(ARCHITECTURES)
    unknown = [name for name in architectures if name not in supported()]
    if unknown:
        parser.error(f"--architecture: expected one of {', '.join(supported())}, got {', '.join(unknown)}")
    count = build(options.folder, architectures, kernels)
    print(f"{count} kernels for {', '.join(architectures)} in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
