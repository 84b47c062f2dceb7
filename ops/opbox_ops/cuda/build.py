"""Compiles kernels of our own beforehand, by NVRTC and without a GPU: python -m opbox_ops.cuda.build FOLDER.

`cubins` says how they are named and found.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import registry
from .cubins import OPTIONS, cubin_name
from .kernel import KERNELS
from .nvrtc import ARCHITECTURES, compile_for

__all__ = ["build"]


def build(folder: Path, architectures: tuple[str, ...] = ARCHITECTURES) -> int:
    """Compile what is not there yet of every kernel, for every type and architecture; how many files there are then.

    Raises:
        CompileError: the compiler's log.
    """
    registry.load()  # the families' files add their kernels
    folder.mkdir(parents=True, exist_ok=True)
    sources = {(kernel.source(dtype), kernel.options) for kernel in KERNELS for dtype in kernel.types}
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


if __name__ == "__main__":
    print(f"{build(Path(sys.argv[1]))} kernels in {sys.argv[1]}")
