"""Texts in C as a processor without AVX-512 compiles them, on one that has it too."""

from __future__ import annotations

__all__ = ["with_vectors_of_8"]


def with_vectors_of_8(text: str) -> str:
    """The text with vectors of 8 numbers; it does not compile with others.

    The header of intrinsics defines anew that there is AVX-512: it is included before that is taken back.
    """
    check = '_Static_assert(WIDTH == 8, "vectors of another length");'
    return f"#include <immintrin.h>\n#undef __AVX512F__\n{text}\n{check}\n"
