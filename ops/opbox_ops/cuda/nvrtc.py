"""NVRTC through ctypes: the compiler alone, of the wheel nvidia-cuda-nvrtc, with the headers of nvidia-cuda-runtime.

It needs no GPU: kernels are compiled by it beforehand (`cubins`), and tried by tests. At run time CuPy compiles.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

__all__ = ["ARCHITECTURES", "CompileError", "compile_cuda", "compile_for", "missing"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""An A100's, an H100's and a B200's."""


class CompileError(Exception):
    """NVRTC refused a kernel's source; the message is the compiler's log, or the status that it answered."""


@cache
def _packages() -> list[Path]:
    """The folders of NVIDIA's wheels: one with everything for CUDA 13, one a library for CUDA 12."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations or () if spec is not None else ()
    return [folder for place in places for folder in Path(place).iterdir()]


@cache
def _folder() -> Path | None:
    return next((folder for folder in _packages() if list(folder.glob("lib/libnvrtc.so*"))), None)


def missing() -> str | None:
    """Why kernels cannot be compiled here; None where they can."""
    return None if _folder() is not None else "NVRTC is not installed (nvidia-cuda-nvrtc, nvidia-cuda-runtime)"


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
    """Compile a CUDA source for an architecture; return the machine code and the compiler's log.

    Raises:
        CompileError: the compiler's log.
    """
    nvrtc, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    includes = [f"-I{folder}/include" for folder in _packages() if (folder / "include").is_dir()]
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
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, binary))
        return binary.raw, log.value.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _check(status: int) -> None:
    if status:
        raise CompileError(f"NVRTC answered {status}")
