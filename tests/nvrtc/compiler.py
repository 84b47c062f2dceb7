"""NVRTC through ctypes: the compiler alone, of the wheel nvidia-cuda-nvrtc, with the headers of nvidia-cuda-runtime."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

__all__ = ["ARCHITECTURES", "CompileError", "compile_cuda", "compile_for", "missing"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""An A100's, an H100's and a B200's."""


class CompileError(Exception):
    """What the compiler says."""


@cache
def _folder() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        for folder in Path(place).iterdir():
            if list(folder.glob("lib/libnvrtc.so*")):
                return folder
    return None


def missing() -> str | None:
    """Why kernels cannot be compiled here; None where they can."""
    return None if _folder() is not None else "NVRTC is not installed: make nvrtc"


@cache
def _library() -> ctypes.CDLL:
    folder = _folder()
    assert folder is not None
    # It opens its built-in headers by name, and finds them when they are loaded already.
    for path in folder.glob("lib/libnvrtc-builtins.so*"):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    [compiler] = folder.glob("lib/libnvrtc.so*")
    return ctypes.CDLL(str(compiler))


def compile_cuda(source: str, options: tuple[str, ...] = ()) -> bytes:
    """The machine code of a source for the last of ARCHITECTURES, when all of them take it.

    Raises:
        CompileError: the compiler's log.
    """
    return [compile_for(architecture, source, options)[0] for architecture in ARCHITECTURES][-1]


def compile_for(architecture: str, source: str, options: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """The machine code of a source for an architecture, and what the compiler says of it.

    Raises:
        CompileError: the compiler's log.
    """
    nvrtc, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    folder = _folder()
    flag_texts = [f"--gpu-architecture={architecture}", f"-I{folder}/include", *options]
    flags = (ctypes.c_char_p * len(flag_texts))(*(flag.encode() for flag in flag_texts))
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(flag_texts), flags)
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        if status:
            raise CompileError(log.value.decode())
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, binary))
        return binary.raw, log.value.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _check(status: int) -> None:
    if status:
        raise CompileError(f"NVRTC answered {status}")
