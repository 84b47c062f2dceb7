"""MXNet's `mx.runtime`: which features MXNet was built with; here, which of them the engine has.

mx.runtime.Features().is_enabled("CUDA")
"""

from __future__ import annotations

from collections import OrderedDict
from importlib.util import find_spec
from typing import NamedTuple

from .absent import module_getattr
from .connection import server_info
from .context import num_gpus

__all__ = ["Feature", "Features", "feature_list"]

_NAMES = (
    "CUDA CUDNN NCCL CUDA_RTC TENSORRT CPU_SSE CPU_SSE2 CPU_SSE3 CPU_SSE4_1 CPU_SSE4_2 CPU_SSE4A CPU_AVX "
    "CPU_AVX2 OPENMP SSE F16C JEMALLOC BLAS_OPEN BLAS_ATLAS BLAS_MKL BLAS_APPLE LAPACK MKLDNN OPENCV CAFFE "
    "PROFILER DIST_KVSTORE CXX14 INT64_TENSOR_SIZE SIGNAL_HANDLER DEBUG TVM_OP"
)
"""MXNet's features, in its order."""
_ALWAYS = ("BLAS_OPEN", "LAPACK", "INT64_TENSOR_SIZE")
"""NumPy brings the first two with it."""


class Feature(NamedTuple):
    """A feature's name, and whether the engine has it."""

    name: str
    enabled: bool

    def __repr__(self) -> str:
        return f"{'✔' if self.enabled else '✖'} {self.name}"


def feature_list() -> list[Feature]:
    """Return MXNet's features, with whether the engine has them."""
    cpu = str(server_info()["cpu"])
    enabled = set(_ALWAYS)
    enabled |= {"MKLDNN"} if cpu.startswith("oneDNN") else set()
    enabled |= {"OPENMP"} if "kernels in C" in cpu else set()
    enabled |= {"CUDA", "CUDA_RTC"} if num_gpus() else set()
    enabled |= {"OPENCV"} if find_spec("cv2") is not None else set()
    return [Feature(name, name in enabled) for name in _NAMES.split()]


class Features(OrderedDict[str, Feature]):
    """The features by name.

    Example:
        >>> mx.runtime.Features()["MKLDNN"].enabled
        True
    """

    def __init__(self) -> None:
        super().__init__((feature.name, feature) for feature in feature_list())

    def __repr__(self) -> str:
        return str(list(self.values()))

    def is_enabled(self, feature_name: str) -> bool:
        """Return whether the engine has a feature; its name may be in small letters.

        Raises:
            RuntimeError: MXNet has no such feature.
        """
        feature = self.get(feature_name.upper())
        if feature is None:
            raise RuntimeError(f"feature {feature_name!r}: expected one of {', '.join(self)}")
        return feature.enabled


__getattr__ = module_getattr(__name__, __all__)
