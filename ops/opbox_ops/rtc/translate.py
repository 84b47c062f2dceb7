"""CUDA C++ made into what another compiler takes, line for line: C++ for the emulator, and NVRTC's dialect.

Little has to change, for the qualifiers and functions of CUDA are macros and functions of device.hpp: headers, which
are the same on both devices, and what C++ has no words for.
"""

from __future__ import annotations

import re

from opbox_protocol.errors import BadRequestError

__all__ = ["for_emulator", "for_nvrtc", "kernel_names", "waits"]

_COMMENT = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'", re.DOTALL
)
_INCLUDE = re.compile(r"^([ \t]*)#[ \t]*include\b[ \t]*([^\n]*)", re.M)
# What CUDA's own headers declare is there without them, on either device.
_CUDA_HEADERS = ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "device_functions.h")
_C_HEADERS = ("assert", "float", "limits", "math", "stddef", "stdint", "stdio", "stdlib", "string")
_PROVIDED = {*_CUDA_HEADERS, *(f"{name}.h" for name in _C_HEADERS), *(f"c{name}" for name in _C_HEADERS)}
_EMULATED = {"cuda_fp16.h", "math_constants.h"}

_FIXED = {8: "char", 16: "short", 32: "int", 64: "long"}
NVRTC_PRELUDE = "".join(
    [
        *(f"typedef signed {c} int{n}_t; typedef unsigned {c} uint{n}_t;\n" for n, c in _FIXED.items()),
        "typedef long intptr_t; typedef unsigned long uintptr_t;\n",
        "#define FLT_MAX 3.402823466e+38F\n#define FLT_MIN 1.175494351e-38F\n#define FLT_EPSILON 1.192092896e-07F\n",
        "#define DBL_MAX 1.7976931348623158e+308\n#define DBL_MIN 2.2250738585072014e-308\n",
        "#define DBL_EPSILON 2.2204460492503131e-16\n",
        "#define INT_MAX 2147483647\n#define INT_MIN (-INT_MAX - 1)\n#define UINT_MAX 4294967295u\n",
        "#define LLONG_MAX 9223372036854775807ll\n#define LLONG_MIN (-LLONG_MAX - 1)\n",
        "#define ULLONG_MAX 18446744073709551615ull\n#define CHAR_BIT 8\n",
        "#define M_PI 3.14159265358979323846\n#define M_SQRT1_2 0.70710678118654752440\n",
        "#ifndef INFINITY\n#define INFINITY __int_as_float(0x7f800000)\n#endif\n",
        "#ifndef NAN\n#define NAN __int_as_float(0x7fffffff)\n#endif\n",
    ]
)
"""Names of the C headers above, for NVRTC, which has none of them."""

_DYNAMIC = re.compile(r"\bextern\b([^;{}=]*?)\b__shared__\b([^;{}=]*?)\b(\w+)\s*\[\s*\]\s*;")
_SIZED = re.compile(r"(\b__shared__\b[^;{}()=,]*?\b(\w+)\s*(?:\[[^\];]+\]\s*)+;)")
_CONSTANT = re.compile(r"(?:\b(?:static|const|__device__)\s+)*\b__constant__\b(?:\s+(?:static|const|__device__)\b)*")
_SHARED = re.compile(r"(?:\bstatic\s+)?\b__shared__\b(?:\s+static\b)?")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm|__asm__)\b(?=\s*(?:volatile|__volatile__)?\s*\()")
_WAITS = re.compile(
    r"__syncthreads|__syncwarp|__activemask|__(?:shfl|ballot|any|all|match|reduce)_\w*sync|__(?:any|all)_sync"
)
_KERNEL = re.compile(r"([^;{}()]*)\b__global__\b(?:[^;{}()]|__launch_bounds__\s*\([^)]*\))*?\b(\w+)\s*\(")


def without_comments(source: str) -> str:
    """The source with comments as spaces, their line breaks kept."""

    def blank(match: re.Match[str]) -> str:
        text = match[0]
        return re.sub(r"[^\n]", " ", text) if text.startswith("/") else text

    return _COMMENT.sub(blank, source)


def waits(source: str) -> bool:
    """Return whether threads of a block wait for each other: at a barrier or at a warp function."""
    return _WAITS.search(without_comments(source)) is not None


def kernel_names(source: str) -> tuple[str, ...]:
    """The kernels of a source that are no templates."""
    kernels = _KERNEL.findall(without_comments(source))
    return tuple(dict.fromkeys(name for before, name in kernels if "template" not in before))


def for_emulator(source: str) -> str:
    """The C++ that the emulator compiles.

    Raises:
        BadRequestError: the source includes a header that the emulator lacks, or has assembly.
    """
    text = _INCLUDE.sub(_without_header, without_comments(source))
    if assembly := _ASSEMBLY.search(text):
        line = text.count("\n", 0, assembly.start()) + 1
        raise BadRequestError(f"kernel.cu:{line}: asm: a CPU runs no PTX: use CUDA's functions, or a GPU")
    # A kernel may have the name of one of C's functions.
    text = re.sub(r'\bextern\s*"C"', 'extern "C++"', text)
    text = _DYNAMIC.sub(_dynamic, text)
    text = _CONSTANT.sub("static const", text)
    text = _SIZED.sub(r'\1 static_assert(sizeof(\2) <= 48 << 10, "a block has 48 KiB of shared memory");', text)
    return _SHARED.sub("static", text)


def _dynamic(match: re.Match[str]) -> str:
    kind = re.sub(r"\b(?:__align__|__builtin_align__|alignas)\s*\(\s*\w+\s*\)|\bstatic\b", "", match[1] + match[2])
    return f"static {kind} (&{match[3]})[] = reinterpret_cast<{kind} (&)[]>(opbox_dynamic_shared);"


def for_nvrtc(source: str) -> str:
    """The text that NVRTC compiles."""
    return f'{NVRTC_PRELUDE}#line 1 "kernel.cu"\n{_INCLUDE.sub(_without_c_header, without_comments(source))}'


def _header(match: re.Match[str]) -> str:
    return match[2].strip().strip('<>"')


def _without_c_header(match: re.Match[str]) -> str:
    return "" if _header(match) in _PROVIDED else match[0]


def _without_header(match: re.Match[str]) -> str:
    if _header(match) in _PROVIDED | _EMULATED:
        return ""
    line = match.string.count("\n", 0, match.start()) + 1
    raise BadRequestError(
        f"kernel.cu:{line}: #include {match[2].strip()}: the emulator of a CPU has {', '.join(sorted(_EMULATED))}, "
        f"{_CUDA_HEADERS[1]} and C's {', '.join(f'{name}.h' for name in _C_HEADERS)}"
    )
