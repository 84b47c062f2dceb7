"""Kernel signatures: MXNet's strings ("const float *x, float *y, int n") read, checked and written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError

__all__ = ["Argument", "decorate", "parse_signature"]

C_TYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "__half": np.dtype(np.float16),
    "uint8_t": np.dtype(np.uint8),
    "int8_t": np.dtype(np.int8),
    "char": np.dtype(np.int8),
    "int": np.dtype(np.int32),
    "int32_t": np.dtype(np.int32),
    "int64_t": np.dtype(np.int64),
}
"""The types that MXNet's get_kernel takes, by their C name."""
_C_NAMES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.float16): "__half"}
_C_NAMES |= {np.dtype(np.uint8): "uint8_t", np.dtype(np.int8): "int8_t"}
_C_NAMES |= {np.dtype(np.int32): "int32_t", np.dtype(np.int64): "int64_t"}

_ARGUMENT = re.compile(r"\s*(const\s+)?(\w+)\s*(\*?)\s*(?:__restrict__\s+)?(\w*)\s*")


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a kernel."""

    name: str
    c_type: str
    is_pointer: bool
    is_const: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, or the scalar's type."""
        return C_TYPES[self.c_type]

    def __str__(self) -> str:
        return f"{'const ' if self.is_const else ''}{self.c_type} {'*' if self.is_pointer else ''}{self.name}"


def parse_signature(kernel: str, signature: str) -> tuple[Argument, ...]:
    """The arguments in a signature such as "const float *x, float *y, float alpha".

    Raises:
        BadRequestError: names the argument that cannot be read and the types there are.
    """
    if not signature.strip():
        return ()
    arguments = []
    for position, text in enumerate(signature.split(",")):
        match = _ARGUMENT.fullmatch(text)
        if match is None or match[2] not in C_TYPES:
            raise BadRequestError(
                f"kernel {kernel!r}: argument {position} of the signature: expected [const] TYPE [*] NAME "
                f"with TYPE one of {', '.join(C_TYPES)}, got {text.strip()!r}"
            )
        arguments.append(Argument(match[4] or f"arg{position}", match[2], bool(match[3]), bool(match[1])))
    return tuple(arguments)


def decorate(
    name: str,
    inputs: Sequence[tuple[str, tuple[int, ...], Any]],
    outputs: Sequence[tuple[str, tuple[int, ...], Any]],
    body: str,
) -> tuple[str, tuple[Argument, ...]]:
    """The kernel that MXNet 0.9's `mx.rtc(name, inputs, outputs, body)` stands for, and its arguments.

    Args:
        name: of the kernel.
        inputs, outputs: (name, shape, dtype) of each array; an input `x` is seen by the body as `const float *x`, with
            the constants `x_ndim` and `x_dims[]`.
        body: what goes between the braces; its first line is line 1 of compiler messages.

    Raises:
        BadRequestError: a name that is not an identifier or appears twice, or a type no kernel can take.
    """
    arguments, constants, seen = [], [], set()
    for arrays, is_const in ((inputs, True), (outputs, False)):
        for array, shape, dtype in arrays:
            if not array.isidentifier() or array in seen:
                raise BadRequestError(
                    f"kernel {name!r}: expected array names that are identifiers and differ, got {array!r}"
                )
            seen.add(array)
            c_type = _C_NAMES.get(np.dtype(dtype))
            if c_type is None:
                listed = ", ".join(str(c_name) for c_name in _C_NAMES)
                raise BadRequestError(f"kernel {name!r}: array {array!r}: expected one of {listed}, got {dtype}")
            arguments.append(Argument(array, c_type, True, is_const))
            dims = ", ".join(str(d) for d in shape) or "1"
            constants.append(f"const int {array}_ndim = {len(shape)}; const int {array}_dims[] = {{{dims}}};")
    if not name.isidentifier():
        raise BadRequestError(f"kernel {name!r}: expected an identifier")
    listed = ", ".join(str(argument) for argument in arguments)
    half = "#include <cuda_fp16.h>\n" if any(argument.c_type == "__half" for argument in arguments) else ""
    source = (
        f'{half}extern "C" __global__ void {name}({listed}) {{ {" ".join(constants)}\n#line 1 "{name}.cu"\n{body}\n}}\n'
    )
    return source, tuple(arguments)
