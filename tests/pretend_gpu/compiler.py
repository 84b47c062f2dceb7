"""g++ in NVRTC's place: CUDA text to a library, kept on disk by content."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

__all__ = ["CompileError", "compiled", "cuda_headers", "kernel_library", "runtime_library", "shared_library", "tag"]

HERE = Path(__file__).parent
_FLAGS = ("-std=c++17", "-fPIC", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
_KERNEL_FLAGS = (
    *_FLAGS,
    *("-O1", "-ffp-contract=off", "-fvisibility=hidden", "-fpermissive", "-fno-threadsafe-statics"),
    "-fno-gnu-unique",
)
_HEADERS = ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h", "float16.cuh", "bfloat16.cuh")
"""CuPy's headers that its kernels include, compiled once."""
_DYNAMIC = re.compile(r"extern\s+__shared__([^;]*?\b\w+\s*\[\s*\])\s*;")
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(|'
    r'extern\s+"C"\s+__launch_bounds__\s*\([^)]*\)\s*__global__\s+void\s+(\w+)\s*\('
)
_WAITS = re.compile(r"__sync|__shfl|_sync\s*\(|\bcub::")

compiled: Counter[str] = Counter()
"""Kernels compiled, and found on disk, by this process."""


class CompileError(Exception):
    """What the compiler says, in NVRTC's form."""


@cache
def _folder() -> Path:
    """Where libraries are kept; one of this process alone where the usual one cannot be written to."""
    folder = Path(os.environ.get("PRETEND_GPU_CACHE") or HERE.parents[1] / ".pretend-gpu" / "kernels")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="pretend-gpu-"))


@cache
def _known() -> Path:
    """Where libraries are looked for first: the usual folder, even if it cannot be written to."""
    return Path(os.environ.get("PRETEND_GPU_CACHE") or HERE.parents[1] / ".pretend-gpu" / "kernels")


@cache
def cuda_headers() -> str:
    """The folder of CUDA's headers, of their wheel."""
    places = importlib.util.find_spec("nvidia").submodule_search_locations  # type: ignore[union-attr]  # it is installed
    [nvidia, *_] = [place for place in places if Path(place, "cu13/include/cuda_fp16.h").exists()]
    return f"{nvidia}/cu13/include"


@cache
def _includes() -> tuple[str, ...]:
    [cupy] = importlib.util.find_spec("cupy").submodule_search_locations  # type: ignore[union-attr, misc]  # it is installed
    own = Path(cupy, "_core", "include")
    parts = ("", "cupy/_cccl/libcudacxx", "cupy/_cccl/thrust", "cupy/_cccl/cub")
    return (*(f"-I{own / part}" for part in parts), f"-I{cuda_headers()}")


def _built(text: str, flags: Sequence[str], suffix: str = ".so", before: str = "") -> Path:
    """The file that g++ makes of a text."""
    key = hashlib.sha256("\0".join([text, before, *flags]).encode()).hexdigest()[:32]
    name = f"{key}{suffix}"
    if (known := _known() / name).exists():
        compiled["from disk"] += 1
        return known
    target = _folder() / name
    if target.exists():
        compiled["from disk"] += 1
        return target
    with tempfile.TemporaryDirectory(dir=_folder()) as build:
        source, output = Path(build, "kernel.cu"), Path(build, "out")
        source.write_text(text, encoding="utf-8")
        command = ["g++", *flags, "-x", "c++-header" if suffix == ".h.gch" else "c++", str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise CompileError(_as_nvrtc(done.stderr))
        os.replace(output, target)
    compiled["new"] += 1
    return target


def _as_nvrtc(log: str) -> str:
    """g++ writes file:line:column, NVRTC file(line)."""
    return re.sub(r"(?m)^(?:[^:\n]*/)?([\w.]+):(\d+):(?:\d+:)?", r"\1(\2):", log)


def shared_library(text: str, flags: Sequence[str]) -> Path:
    """A library of C++."""
    return _built(text, (*_FLAGS, *flags, "-shared"))


@cache
def runtime_library() -> Path:
    """The library that runs grids (device.cpp)."""
    fibers = (HERE.parents[1] / "ops/opbox_ops/rtc/fibers.hpp").read_text("utf-8")
    text = re.sub(r'#include "fibers\.hpp".*', lambda line: fibers, (HERE / "device.cpp").read_text("utf-8"))
    return _built(text, (*_FLAGS, "-O2", "-shared", _includes()[-1]))


@cache
def _precompiled(definitions: tuple[str, ...]) -> Path:
    text = f'#include "{HERE / "device.h"}"\n' + "".join(f"#include <cupy/{name}>\n" for name in _HEADERS)
    own = (HERE / "device.h").read_text("utf-8")
    flags = (*_KERNEL_FLAGS, *definitions, *_includes())
    built = _built(text, flags, ".h.gch", own)
    header = built.with_suffix("")
    if not header.exists():
        partial = header.with_name(f"{header.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, header)
    return header


def _keep_source(source: str, options: Sequence[str]) -> None:
    """Where PRETEND_GPU_SOURCES names a folder, CUDA texts are kept in it for NVRTC (tests/nvrtc/report.py)."""
    folder = os.environ.get("PRETEND_GPU_SOURCES")
    if not folder:
        return
    plain_options = [option for option in options if not option.startswith("-I")]
    text = f"// {json.dumps(plain_options)}\n{source}"
    path = Path(folder, f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.cu")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)


def _with_insertion(source: str) -> str:
    """Where PRETEND_GPU_INSERT says "kernel: statement", that kernel begins with the statement: a fault on purpose."""
    name, _, statement = os.environ.get("PRETEND_GPU_INSERT", "").partition(":")
    return re.sub(rf"(void {re.escape(name)}\([^)]*\) \{{)", rf"\1 {statement}", source) if name else source


def tag(name: str) -> str:
    """A kernel's name as part of a C name."""
    return re.sub(r"\W", "_", name)


def kernel_library(source: str, options: Sequence[str], instances: Sequence[str] = ()) -> Path:
    """The library of a CUDA text: for each kernel `launch_<tag>` and `sizes_<tag>`.

    Args:
        source: CUDA C++.
        options: as NVRTC takes them; definitions are used.
        instances: of templates.

    Raises:
        CompileError: it does not compile.
    """
    _keep_source(source, options)
    source = _with_insertion(source)
    definitions = tuple(o for o in options if o.startswith(("-D", "-U")) and "JITIFY" not in o)
    header = _precompiled(())
    kernels = [a or b for a, b in _KERNEL.findall(source)]
    entries = "".join(
        f"static void call_{tag(name)}(void **p) {{ pretend::call(&{name}, p); }}\n"
        f'extern "C" {{\n'
        f'__attribute__((visibility("default"))) extern void (*const launch_{tag(name)})(void **);\n'
        f"void (*const launch_{tag(name)})(void **) = call_{tag(name)};\n"
        f'__attribute__((visibility("default"))) int sizes_{tag(name)}(int *out) '
        f"{{ return pretend::sizes(&{name}, out); }}\n"
        f'__attribute__((visibility("default"))) extern const int waits_{tag(name)};\n'
        f"const int waits_{tag(name)} = {int(bool(_WAITS.search(source)))};\n}}\n"
        for name in dict.fromkeys([*kernels, *instances])
    )
    body = _DYNAMIC.sub(r'extern\1 __asm__("pretend_dynamic");', source)
    text = f'#line 1 "kernel.cu"\n{body}\n#line 1 "launch"\n{entries}'
    return _built(text, ("-include", str(header), *_KERNEL_FLAGS, *definitions, *_includes(), "-shared"))
