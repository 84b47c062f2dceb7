"""cuBLASLt by ctypes: a product of two matrices whose kernel adds a bias before it rounds.

    out (rows, hidden) = data (rows, features) @ weight (hidden, features).T + bias (hidden,)

cublasLtMatmul takes its stream and its workspace as arguments, so that a capture takes it; the workspace is the one
that products of that stream use anyway. An algorithm is asked for when a plan is compiled, once for each device and
problem, and the descriptions are made when the plan is bound: a run makes one call. Half precision and bfloat16 are
added up in single and rounded once; parts of a sum too are added in single. Single precision is multiplied in TF32
only where OPBOX_ALLOW_TF32 is 1.

Of the epilogues only the bias is used. RELU and RELU_BIAS turn NaN into 0, where MXNet's relu keeps it:
https://forums.developer.nvidia.com/t/incorrect-result-of-cublasltmatmul-with-cublaslt-epilogue-relu-when-input-is-nan/329783.
Numbers and signatures are those of `cublasLt.h`.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

from opbox_protocol.errors import MXNetError

from ..compute import Array
from .cublas import MIN_WORKSPACE_BYTES, workspace, workspace_bytes
from .precision import allow_tf32
from .shared_libraries import load_library

__all__ = [
    "ALIGNMENT",
    "CONSTANTS",
    "SIGNATURES",
    "BiasedProduct",
    "HeuristicResult",
    "PlannedProduct",
    "attach",
    "planned",
]

ALIGNMENT = 16
"""Bytes that the arrays' addresses are multiples of: the algorithms are asked for that."""
DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
"""cudaDataType_t by the name of a NumPy type: of those that are added up in single."""
CONSTANTS = {
    "CUBLAS_OP_T": 1,
    "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "CUBLASLT_MATMUL_DESC_TRANSA": 3,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": 7,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": 8,
    "CUBLASLT_EPILOGUE_BIAS": 4,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": 1,
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": 3,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES": 5,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES": 8,
    "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": 2,
}
"""The library's numbers, by its names."""
_SINGLE = DATA_TYPES["float32"]
_SOME_BIAS = ALIGNMENT
"""A bias's address in the question for an algorithm, which looks at its alignment and reads nothing there."""
_PROBLEMS = 4096


class MatmulAlgorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algo", MatmulAlgorithm),
        ("workspaceSize", c_size_t),
        ("state", c_int),
        ("wavesCount", c_float),
        ("reserved", c_int * 4),
    ]


_OBJECT = c_void_p
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (_OBJECT, c_int, c_void_p, c_size_t),
    "cublasLtMatmulDescDestroy": (_OBJECT,),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (_OBJECT,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": (_OBJECT, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (_OBJECT,),
    "cublasLtMatmulAlgoGetHeuristic": (
        *(_OBJECT, _OBJECT, *(_OBJECT,) * 4, _OBJECT),
        *(c_int, POINTER(HeuristicResult), POINTER(c_int)),
    ),
    "cublasLtMatmul": (
        *(_OBJECT, _OBJECT, c_void_p, c_void_p, _OBJECT, c_void_p, _OBJECT, c_void_p),
        *(c_void_p, _OBJECT, c_void_p, _OBJECT, POINTER(MatmulAlgorithm), c_void_p, c_size_t, c_void_p),
    ),
}
"""The arguments of the functions; all answer a status."""
_log = logging.getLogger(__name__)


class _LtState:
    """CuPy, once this process has a GPU."""

    cupy: Any = None


def attach(cupy: Any) -> None:
    """Set the CuPy of this process; before this call cuBLASLt counts as absent."""
    _LtState.cupy = cupy


@cache
def _library() -> Any:
    """The library; None where there is none, which the log says once."""
    try:
        library = load_library("cublasLt")
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
    except (OSError, AttributeError) as error:  # it is nowhere, or lacks a function
        _log.warning("gpu: biases are added behind their products, as there is no cuBLASLt (%s)", error)
        return None
    return library


@cache
def _handle(place: int) -> c_void_p | None:
    """The handle of the current device, whose number is `place`; None where the library does not start there."""
    handle = c_void_p()
    status = _library().cublasLtCreate(byref(handle))
    if status:
        _log.warning(
            "gpu:%d: biases are added behind their products: cuBLASLt refused a call: cublasLtCreate answered %d",
            place,
            status,
        )
        return None
    return handle


def _check(name: str, status: int) -> None:
    if status:
        raise MXNetError(f"cuBLASLt refused a call: {name} answered {status}")


@dataclass(frozen=True)
class BiasedProduct:
    """The sizes of a product with a bias.

    Attributes:
        dtype: of all arrays, by name.
        rows, hidden, features: see the module.
        tf32: whether single precision may be multiplied in TF32.
    """

    dtype: str
    rows: int
    hidden: int
    features: int
    tf32: bool

    @classmethod
    def of(cls, dtype: str, rows: int, hidden: int, features: int) -> BiasedProduct:
        """With what the process says of TF32."""
        return cls(dtype, rows, hidden, features, dtype == "float32" and allow_tf32())


class _LtDescriptions:
    """cuBLASLt's descriptions of a problem and its matrices; destroyed with this object.

    It reads matrices by columns: to it ours are the transposed, and out.T = weight @ data.T, whose rows have the bias.
    """

    def __init__(self, library: Any, problem: BiasedProduct, bias: int) -> None:
        self._library = library
        kind = DATA_TYPES[problem.dtype]
        computed = CONSTANTS["CUBLAS_COMPUTE_32F_FAST_TF32" if problem.tf32 else "CUBLAS_COMPUTE_32F"]
        self.product = self._created("MatmulDesc", computed, _SINGLE)
        self._set(self.product, "TRANSA", c_int(CONSTANTS["CUBLAS_OP_T"]))
        self._set(self.product, "EPILOGUE", c_int(CONSTANTS["CUBLASLT_EPILOGUE_BIAS"]))
        self._set(self.product, "BIAS_POINTER", c_void_p(bias))
        rows, hidden, features = problem.rows, problem.hidden, problem.features
        self.weight = self._created("MatrixLayout", kind, features, hidden, features)
        self.data = self._created("MatrixLayout", kind, features, rows, features)
        self.out = self._created("MatrixLayout", kind, hidden, rows, hidden)

    def algorithm(self, handle: c_void_p, most: int) -> HeuristicResult | None:
        """The algorithm that the library recommends, in `most` bytes of workspace; None where it has none."""
        preference = self._created("MatmulPreference")
        scheme = CONSTANTS["CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE"]
        self._set(preference, "MAX_WORKSPACE_BYTES", c_uint64(most), "PREF")
        self._set(preference, "REDUCTION_SCHEME_MASK", c_int(scheme), "PREF")
        first, last = (CONSTANTS[f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{matrix}_BYTES"] for matrix in "AD")
        for number in range(first, last + 1):
            self._set_number(preference, number, c_int(ALIGNMENT), "PREF")
        result, count = HeuristicResult(), c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            *(handle, self.product, self.weight, self.data, self.out, self.out),
            *(preference, 1, byref(result), byref(count)),
        )
        usable = not status and count.value > 0 and not result.state and result.workspaceSize <= most
        return result if usable else None

    def _set(self, description: c_void_p, name: str, value: Any, kind: str = "DESC") -> None:
        self._set_number(description, CONSTANTS[f"CUBLASLT_MATMUL_{kind}_{name}"], value, kind)

    def _set_number(self, description: c_void_p, number: int, value: Any, kind: str) -> None:
        name = f"cublasLtMatmul{'Desc' if kind == 'DESC' else 'Preference'}SetAttribute"
        _check(name, getattr(self._library, name)(description, number, byref(value), ctypes.sizeof(value)))

    def _created(self, what: str, *arguments: Any) -> c_void_p:
        description = c_void_p()
        name = f"cublasLt{what}Create"
        _check(name, getattr(self._library, name)(byref(description), *arguments))
        destroy = partial(getattr(self._library, f"cublasLt{what}Destroy"), description)
        # At the process's end the library may be gone.
        weakref.finalize(self, destroy).atexit = False
        return description


class PlannedProduct:
    """A problem with the algorithms that run it on a device.

    Attributes:
        algorithms: for a whole workspace, and for the least that a stream may have.
    """

    def __init__(self, handle: c_void_p, problem: BiasedProduct, algorithms: tuple[HeuristicResult, ...]) -> None:
        self._handle, self._problem, self.algorithms = handle, problem, algorithms

    def bind(self, data: Array, weight: Array, bias: Array, out: Array) -> Callable[[], None]:
        """A call that computes out; arrays are contiguous and aligned to ALIGNMENT bytes."""
        cupy, library = _LtState.cupy, _library()
        described = _LtDescriptions(library, self._problem, bias.data.ptr)
        one, zero = c_float(1), c_float(0)
        arguments = (
            *(self._handle, described.product, byref(one), weight.data.ptr, described.weight),
            *(data.data.ptr, described.data, byref(zero), out.data.ptr, described.out, out.data.ptr, described.out),
        )
        best, smallest = self.algorithms

        def run(keep: Any = (data, weight, bias, out, described, self)) -> None:
            stream = cupy.cuda.get_current_stream().ptr
            memory = workspace(cupy, stream)
            size = memory.mem.size
            chosen = best if best.workspaceSize <= size else smallest
            status = library.cublasLtMatmul(*arguments, byref(chosen.algo), memory.ptr, size, stream)
            _check("cublasLtMatmul", status)

        return run


def planned(problem: BiasedProduct) -> PlannedProduct | None:
    """A problem's algorithms on the current device; None where there is no cuBLASLt, or it has none."""
    if _LtState.cupy is None or _library() is None:
        return None
    return _planned(int(_LtState.cupy.cuda.runtime.getDevice()), problem)


@lru_cache(maxsize=_PROBLEMS)
def _planned(place: int, problem: BiasedProduct) -> PlannedProduct | None:
    handle = _handle(place)
    if handle is None:
        return None
    try:
        described = _LtDescriptions(_library(), problem, _SOME_BIAS)
        sizes = (workspace_bytes(_LtState.cupy), MIN_WORKSPACE_BYTES)
        algorithms = tuple([chosen for most in sizes if (chosen := described.algorithm(handle, most)) is not None])
    except MXNetError:
        return None  # what it does not describe
    return PlannedProduct(handle, problem, algorithms) if len(algorithms) == len(sizes) else None
