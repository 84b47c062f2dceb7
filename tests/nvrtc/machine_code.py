"""Finds instructions in a kernel's machine code for sm_90 and later by their numbers, and negated operands in its PTX.

In CUDA 12.9 and 13.0 the assembler makes one instruction, VIMNMX3, of `max(max(a, -b), c)` of whole numbers, without
the sign of b. CUDA 13.5 negates b first. (Seen with the disassembler of the wheel nvidia-cuda-nvdisasm.)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import numpy as np

__all__ = ["THREE_WAY_MINMAX", "functions_with", "negated_operands"]

THREE_WAY_MINMAX = 0x00F
"""VIMNMX3: the smallest or largest of three whole numbers."""
_NUMBER = 0x1FF
"""The part of an instruction's first word that says which it is; behind it stands whether operands are registers."""
_NEGATED = re.compile(r"(?:neg\.s32\s+(%r\d+),|sub\.s32\s+(%r\d+), 0,|mul\.lo\.s32\s+(%r\d+), %r\d+, -1;)")
_MOVED = re.compile(r"mov\.[bsu]32\s+(%r\d+), (%r\d+);")
_MINMAX = re.compile(r"(?:min|max)\.s32\s+%r\d+, (%r\d+), (\S+);")


def _instructions(cubin: bytes) -> Iterator[tuple[str, set[int]]]:
    """Yield the functions of an ELF file of 64 bits, with the numbers of their instructions of 16 bytes."""
    assert cubin[:5] == b"\x7fELF\x02"
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, of_names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + size * n) for n in range(count)]
    names = sections[of_names][4]
    for name_at, _, _, _, offset, length in sections:
        name = cubin[names + name_at : cubin.index(b"\0", names + name_at)].decode()
        if name.startswith(".text."):
            words = np.frombuffer(cubin, "<u8", length // 8, offset)[::2]
            yield name.removeprefix(".text."), set((words & _NUMBER).tolist())


def functions_with(instruction: int, cubin: bytes) -> set[str]:
    """Return the functions that have an instruction, in code for sm_90 or later."""
    return {name for name, numbers in _instructions(cubin) if instruction in numbers}


def negated_operands(ptx: str) -> set[str]:
    """Return the registers that are negated numbers, and of which a smallest or largest is taken."""
    negated = {next(filter(None, match)) for match in _NEGATED.findall(ptx)}
    moves = _MOVED.findall(ptx)
    while copies := {to for to, register in moves if register in negated} - negated:
        negated |= copies
    return negated & {register for pair in _MINMAX.findall(ptx) for register in pair}
