"""NVRTC through ctypes: the compiler alone, of its wheel (nvidia-cuda-nvrtc) or of CUDA's own folder, with the headers.

It needs no GPU: kernels are compiled by it beforehand (`cubins`), and tried by tests. At run time CuPy compiles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from .shared_libraries import include_folders, library_folders

__all__ = ["ARCHITECTURES", "CompileError", "compile_cuda", "compile_for", "missing", "ptx_for", "supported"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""An A100's, an H100's and a B200's."""


class CompileError(Exception):
    """NVRTC refused a kernel's source; the message is the compiler's log, or the status that it answered."""


@cache
def _folder() -> Path | None:
    """The folder of the compiler's library."""
    return next((folder for folder in library_folders() if list(folder.glob("libnvrtc.so*"))), None)


def missing() -> str | None:
    """Why kernels cannot be compiled here; None where they can."""
    return None if _folder() is not None else "NVRTC is not installed (nvidia-cuda-nvrtc, nvidia-cuda-runtime)"


@cache
def _library() -> ctypes.CDLL:
    folder = _folder()
    assert folder is not None
    # It opens its built-in headers by name, and finds them when they are loaded already.
    for path in folder.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    # In CUDA's own folder the library has several names.
    return ctypes.CDLL(str(min(folder.glob("libnvrtc.so*"))))


@cache
def supported() -> tuple[str, ...]:
    """The architectures that the compiler knows, the oldest first: "sm_75", "sm_80", …"""
    nvrtc, count = _library(), ctypes.c_int()
    _check(nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check(nvrtc.nvrtcGetSupportedArchs(numbers))
    return tuple(f"sm_{number}" for number in numbers)


def compile_cuda(source: str, options: tuple[str, ...] = ()) -> bytes:
    """The machine code of a source for the last of ARCHITECTURES, when all of them take it.

    Raises:
        CompileError: the compiler's log.
    """
    return [compile_for(architecture, source, options)[0] for architecture in ARCHITECTURES][-1]


def compile_for(architecture: str, source: str, options: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """Compile a CUDA source for an architecture; return the machine code and the compiler's log.

    Raises:
        CompileError: the compiler's log.
    """
    nvrtc, size = _library(), ctypes.c_size_t()
    with _program(architecture, source, options) as (program, log):
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, binary))
        return binary.raw, log


def ptx_for(architecture: str, source: str, options: tuple[str, ...] = ()) -> str:
    """Compile a CUDA source to NVIDIA's assembly language, in which each instruction can be read, and no further.

    Raises:
        CompileError: the compiler's log.
    """
    nvrtc, size = _library(), ctypes.c_size_t()
    with _program(architecture.replace("sm_", "compute_"), source, options) as (program, _):
        _check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetPTX(program, text))
        return text.value.decode()


@contextmanager
def _program(architecture: str, source: str, options: tuple[str, ...]) -> Iterator[tuple[ctypes.c_void_p, str]]:
    """A compiled program and the compiler's log."""
    nvrtc, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    includes = [f"-I{folder}" for folder in include_folders()]
    flag_texts = [f"--gpu-architecture={architecture}", *includes, *options]
    flags = (ctypes.c_char_p * len(flag_texts))(*(flag.encode() for flag in flag_texts))
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(flag_texts), flags)
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        if status:
            raise CompileError(log.value.decode())
        yield program, log.value.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _check(status: int) -> None:
    if status:
        raise CompileError(f"NVRTC answered {status}")
