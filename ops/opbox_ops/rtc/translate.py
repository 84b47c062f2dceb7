"""CUDA C++ made into C++ for the emulator: the same lines, with pointers that know their arrays.

Only declarations change: pointer types become `opbox::Ptr<T>`, `__shared__` arrays become checked ones. Everything else
(`threadIdx`, `__syncthreads()`, `atomicAdd`, the math functions) is defined by prelude.hpp. Line numbers stay.
"""

from __future__ import annotations

import re

__all__ = ["has_barrier", "translate"]

_BUILTIN = [
    r"unsigned\s+long\s+long(?:\s+int)?",
    r"long\s+long\s+int",
    r"long\s+long",
    r"unsigned\s+(?:int|char|short|long)",
    r"signed\s+(?:int|char|short|long)",
    *("float", "double", "int", "unsigned", "char", "short", "long", "bool", "void", "size_t", "__half", "half"),
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"{base}{n}" for base in ("float", "double", "int") for n in (2, 3, 4)),
]
_DECLARED = re.compile(r"\b(?:struct|class|typename|using)\s+(\w+)|\btypedef\b[^;]*?\b(\w+)\s*;")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
# The prelude has what these have.
_CUDA_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cuda\w*|math_constants|device_launch_parameters)\.h[>\"]", re.M
)
_DYNAMIC = re.compile(r"\bextern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w\s]+?)\s*\b(\w+)\s*\[\s*\]\s*;")
_SHARED = re.compile(r"\b__shared__\s+([\w\s]+?)\s*\b(\w+)((?:\s*\[[^\]]+\])+)\s*;")


def without_comments(source: str) -> str:
    """The source with comments as spaces, their line breaks kept."""

    def blank(match: re.Match[str]) -> str:
        text = match[0]
        return re.sub(r"[^\n]", " ", text) if text.startswith("/") else text

    return _COMMENT.sub(blank, source)


def has_barrier(source: str) -> bool:
    """Whether threads of a block have to meet."""
    return "__syncthreads" in without_comments(source)


def translate(source: str) -> str:
    """The C++ that the emulator compiles, line for line."""
    text = without_comments(source)
    text = _CUDA_HEADER.sub("", text)
    text = re.sub(r'\bextern\s*"C"', "", text)
    text = _DYNAMIC.sub(r"opbox::Ptr<\1> \2 = opbox::shared_bytes<\1>();", text)
    text = _SHARED.sub(_fixed, text)
    text = re.sub(r"\b__shared__\b", "OPBOX_SHARED", text)
    names = {name for pair in _DECLARED.findall(text) for name in pair if name}
    types = "|".join([*_BUILTIN, *map(re.escape, sorted(names))])
    pointer = re.compile(rf"\b((?:const\s+|volatile\s+)*)({types})(\s+const)?\s*\*")
    text = pointer.sub(lambda m: f"opbox::Ptr<{'const ' if 'const' in m[1] or m[3] else ''}{m[2]}> ", text)
    text = re.sub(r"\b(?:reinterpret|static)_cast<(?=\s*(?:const\s+)?opbox::Ptr<)", "opbox::cast<", text)
    return re.sub(r"(?<=[;{}])(\s*)opbox::Ptr<([^<>;]+)>([^;(){}]*,[^;{}]*);", _declarators, text)


def _fixed(match: re.Match[str]) -> str:
    kind = match[1]
    for length in reversed(re.findall(r"\[([^\]]+)\]", match[3])):
        kind = f"opbox::Fixed<{kind}, {length}>"
    return f"OPBOX_SHARED {kind} {match[2]};"


def _declarators(match: re.Match[str]) -> str:
    """`float *a = x, *b = y, c;` as one declaration each: a star belongs to its name, a class template does not."""
    space, kind, rest = match[1], match[2], match[3]
    parts, depth, start = [], 0, 0
    for position, char in enumerate(rest):
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            parts.append(rest[start:position])
            start = position + 1
    parts.append(rest[start:])
    told = [f"opbox::Ptr<{kind}> {parts[0].strip()}"]
    for part in parts[1:]:
        name = part.strip()
        told.append(f"opbox::Ptr<{kind}> {name[1:].strip()}" if name.startswith("*") else f"{kind} {name}")
    breaks = "\n" * rest.count("\n")
    return f"{space}{'; '.join(told)};{breaks if '; '.join(told).count(chr(10)) < rest.count(chr(10)) else ''}"
