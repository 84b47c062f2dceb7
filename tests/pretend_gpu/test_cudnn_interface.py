"""cuDNN's C interface as the binding has it: the stand-in's text, and NVIDIA's headers and library where installed."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from ctypes import POINTER, c_double, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest

from opbox_ops.cuda.shared_libraries import SONAMES
from opbox_ops.cudnn.algorithms import (
    DATA,
    FORWARD,
    IMPLICIT_PRECOMP_GEMM,
    ConvolutionProblem,
    Descriptors,
    UsableAlgorithm,
)
from opbox_ops.cudnn.library import DATA_TYPES, OLDEST, SIGNATURES, Performance
from opbox_ops.cudnn.planned import PlannedConvolution

from .compiler import _includes, shared_library
from .libraries.cudnn_library import source

_PROTOTYPE = re.compile(r"cudnnStatus_t\s+(?:CUDNNWINAPI\s+)?(cudnn\w+)\s*\(([^()]*)\)")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SCALARS = {"size_t": c_size_t, "int": c_int, "double": c_double, "cudaStream_t": c_void_p}
_LISTS = {"int": POINTER(c_int), "size_t": POINTER(c_size_t), "void": c_void_p}
"""What a pointer to it is in the binding."""


def installed(part: str) -> Path | None:
    """A folder of the cuDNN that NVIDIA's wheels have brought."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else spec.submodule_search_locations or []
    folders = [folder for place in places if (folder := Path(place, "cudnn", part)).is_dir()]
    return folders[0] if folders else None


needs_headers = pytest.mark.skipif(installed("include") is None, reason="needs the headers of nvidia-cudnn-cu13")
needs_library = pytest.mark.skipif(installed("lib") is None, reason="needs the library of nvidia-cudnn-cu13")


def argument(declared: str) -> Any:
    """The ctypes type of a parameter's declaration."""
    name = re.sub(r"\bconst\b", "", declared)
    pointers = name.count("*") + name.count("[")
    [kind, *_] = re.findall(r"\w+", name)
    if kind.endswith("Perf_t"):
        return POINTER(Performance)
    if kind.endswith("Descriptor_t") or kind == "cudnnHandle_t":
        return POINTER(c_void_p) if pointers else c_void_p
    if pointers:
        return _LISTS[kind]
    return _SCALARS.get(kind, c_int)  # the rest are enumerations


def prototypes(text: str) -> dict[str, tuple[Any, ...]]:
    """The functions that a C text declares and the binding has, as ctypes types."""
    found_functions = {}
    for name, parameters in _PROTOTYPE.findall(_COMMENT.sub(" ", text)):
        if name in SIGNATURES:
            found_functions[name] = tuple(argument(part) for part in parameters.split(",") if part.strip())
    return found_functions


def test_the_binding_and_the_stand_in_have_the_same_functions() -> None:
    assert prototypes(source()) == SIGNATURES


@needs_headers
def test_the_binding_has_nvidias_signatures() -> None:
    folder = installed("include")
    assert folder is not None
    text = "".join((folder / f"cudnn_{part}.h").read_text("utf-8") for part in ("graph", "ops", "cnn"))
    assert prototypes(text) == SIGNATURES


@needs_headers
def test_the_stand_in_compiles_against_nvidias_headers() -> None:
    # A signature that differs is another declaration of the same C function; numbers are asserted in the text.
    assert shared_library(source(), ("-DPRETEND_CUDNN_HEADER", f"-I{installed('include')}", _includes()[-1]))


@needs_library
@pytest.mark.parametrize("dtype", DATA_TYPES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("direction", [FORWARD, DATA], ids=lambda direction: direction.name)
def test_nvidias_library_takes_the_descriptions(dtype: str, last: bool, direction: Any) -> None:
    """Without a GPU: descriptions are the host's own."""
    library = ctypes.CDLL(str(Path(installed("lib") or "", SONAMES["cudnn"][13])))
    library.cudnnGetVersion.restype = c_size_t
    assert library.cudnnGetVersion() >= OLDEST
    for name, arguments in SIGNATURES.items():
        getattr(library, name).argtypes = arguments

    class Host:
        """The part of a DeviceHandle that needs no device."""

        def describe(self, name: str, *arguments: Any) -> None:
            assert getattr(library, name)(*arguments) == 0, name

    for data, weight, out, window in (
        ((2, 4, 9), (6, 2, 3), (2, 6, 5), ((2,), (1,), (1,))),
        ((2, 4, 8, 9), (6, 2, 3, 2), (2, 6, 4, 4), ((2, 3), (1, 1), (1, 2))),
        ((2, 4, 5, 6, 7), (6, 2, 2, 3, 3), (2, 6, 3, 2, 3), ((2, 1, 2), (1, 2, 1), (1, 0, 0))),
    ):
        if last and len(data) == 3:
            continue
        problem = ConvolutionProblem.of(direction, dtype, (data, weight, out), window, 2, last, True, 0)
        host: Any = Host()
        descriptors = Descriptors(host, problem)
        if direction is FORWARD:
            algorithm = UsableAlgorithm(IMPLICIT_PRECOMP_GEMM, problem.math, 0, adds_bias=True)
            algorithm = UsableAlgorithm(IMPLICIT_PRECOMP_GEMM, problem.math, 0, adds_bias=True)
            assert PlannedConvolution(host, problem, algorithm)
        wide, filters, _ = descriptors.arrays
        rank = len(problem.shapes[2])
        sizes = (c_int * rank)()
        status = library.cudnnGetConvolutionNdForwardOutputDim(descriptors.convolution, wide, filters, rank, sizes)
        assert status == 0
        assert tuple(sizes) == problem.shapes[2]
