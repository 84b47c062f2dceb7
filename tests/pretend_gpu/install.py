"""Puts the pretend devices below CuPy, and g++ in NVRTC's place."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["above", "below"]


def below() -> None:
    """Before CuPy is imported: put the pretend devices and libraries below it."""
    os.environ.setdefault("CUPY_ACCELERATORS", "")
    # Measurements behind the calls would be counted with them, and leave files in the user's home.
    os.environ.setdefault("OPBOX_CUDNN_TUNE", "off")
    runtime: Any = importlib.import_module("cupy_backends.cuda.api.runtime")
    driver: Any = importlib.import_module("cupy_backends.cuda.api.driver")
    from .capsules import exchange
    from .libraries import cublas, thrust
    from .runtime import driver_functions, runtime_functions

    class DriverError(driver.CUDADriverError):  # type: ignore[misc, name-defined]  # CuPy has no types
        """Its own constructor asks the driver for the error's name."""

        def __init__(self, status: int) -> None:
            self.status = status
            RuntimeError.__init__(self, f"CUDA_ERROR_{status}")

    exchange(runtime, runtime_functions(runtime.CUDARuntimeError))
    exchange(driver, driver_functions(DriverError))
    libraries = importlib.import_module("cupy_backends.cuda.libs")
    _module("cupy_backends.cuda.libs.cublas", cublas.functions(), libraries)
    _module("cupy.cuda.thrust", thrust.functions())
    nvrtc: Any = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
    nvrtc.getVersion = lambda: (13, 0)


def above(cupy: Any) -> None:
    """After CuPy is imported: exchange its compiler and its generators."""
    from .libraries import (
        cublas_library,
        cublaslt_library,
        cudnn_library,
        cufft_library,
        factors,
        generators,
        nccl_library,
    )

    _compile_by_gcc()
    generators.replace(cupy)
    factors.replace(cupy)
    _libraries(
        {
            "cublas": cublas_library.library_file,
            "cublasLt": cublaslt_library.library_file,
            "cudnn": cudnn_library.library_file,
            "cufft": cufft_library.library_file,
            "nccl": nccl_library.library_file,
        }
    )


def _libraries(files: dict[str, Callable[[], str]]) -> None:
    """Have these found in the place of NVIDIA's, and no others: pathfinder would start processes to look for them."""
    pathfinder: Any = importlib.import_module("cuda.pathfinder")

    def load(name: str) -> Any:
        if name not in files:
            raise pathfinder.DynamicLibNotFoundError(f"the pretend device has no library {name}")
        return types.SimpleNamespace(abs_path=files[name]())

    pathfinder.load_nvidia_dynamic_lib = load
    from .compiler import cuda_headers

    pathfinder.find_nvidia_header_directory = lambda name: cuda_headers()


def _module(name: str, functions: dict[str, Any], parent: Any = None) -> None:
    module = types.ModuleType(name)
    vars(module).update(functions)
    sys.modules[name] = module
    if parent is not None:
        setattr(parent, name.rpartition(".")[2], module)


def _compile_by_gcc() -> None:
    compiler: Any = importlib.import_module("cupy.cuda.compiler")
    function: Any = importlib.import_module("cupy.cuda.function")
    from .compiler import CompileError, kernel_library
    from .device import ONLY_LAUNCHES

    def compile_module(
        source: str, options: tuple[str, ...] = (), *, name_expressions: Any = None, **others: Any
    ) -> Any:
        if ONLY_LAUNCHES:
            return loaded(source.encode(), name_expressions)
        try:
            path = kernel_library(source, options, name_expressions or ())
        except CompileError as error:
            raise compiler.CompileException(str(error), source, "kernel.cu", options, "nvrtc") from None
        return loaded(str(path).encode(), name_expressions)

    def loaded(code: bytes, name_expressions: Any) -> Any:
        module = function.Module()
        module.load(code)
        if name_expressions:
            module._set_mapping({name: name for name in name_expressions})
        return module

    compiler._compile_module_with_cache = compile_module
