"""Compiler options that a user may give: definitions, the language's version, how exact the arithmetic is.

Anything else is refused: a path would let a kernel's text read the server's files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from opbox_protocol.errors import BadRequestError

__all__ = ["checked_options", "definitions"]

_TAKEN = re.compile(
    r"""
    -D\s*\w+(?:\([\w\s,]*\))?(?:=[^\n\\]*)? | -U\s*\w+
    | --?std=c\+\+(?:11|14|17|20)
    | --?use_fast_math | --?extra-device-vectorization | --?lineinfo | --?device-debug
    | --?extended-lambda | --?device-as-default-execution-space
    | --?(?:ftz|prec-div|prec-sqrt|fmad)=(?:true|false)
    | --?maxrregcount=\d+
    """,
    re.VERBOSE,
)
# MXNet's own example gives it; NVRTC is told where its headers are, so it has no effect.
_HEADERS = re.compile(r"-I\s*/usr/local/cuda[\w.-]*/include/?")


def checked_options(kernel: str, options: Sequence[str]) -> tuple[str, ...]:
    """The options that reach the compiler.

    Raises:
        BadRequestError: an option that is none of those above.
    """
    accepted = []
    for option in options:
        if _HEADERS.fullmatch(option):
            continue
        if not _TAKEN.fullmatch(option):
            raise BadRequestError(
                f"kernel {kernel!r}: option {option!r}: expected -DNAME[=VALUE], -UNAME, --std=c++17, --use_fast_math, "
                "--ftz=, --prec-div=, --prec-sqrt=, --fmad=, --maxrregcount=, --extended-lambda, "
                "--device-as-default-execution-space, --lineinfo or --device-debug"
            )
        accepted += _for_nvrtc(option)
    return tuple(accepted)


def _for_nvrtc(option: str) -> list[str]:
    """An option of nvcc as NVRTC spells it: with two dashes; none where NVRTC has nothing that it would change."""
    if option.startswith(("-D", "-U")):
        return [option]
    name = option.lstrip("-")
    if name == "extended-lambda":
        return []
    return ["--generate-line-info" if name == "lineinfo" else f"--{name}"]


def definitions(options: Sequence[str]) -> str:
    """The -D and -U among them as lines of source."""
    lines = []
    for option in options:
        if not option.startswith(("-D", "-U")):
            continue
        name, _, value = option[2:].strip().partition("=")
        lines.append(f"#undef {name.partition('(')[0]}\n")
        if option.startswith("-D"):
            lines.append(f"#define {name} {value or 1}\n")
    return "".join(lines)
