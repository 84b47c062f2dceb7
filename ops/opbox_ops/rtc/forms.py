"""The two forms of kernels that users send: whole sources with signatures, and bodies over named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from opbox_protocol.errors import BadRequestError

from .kernels import UserKernel, compile_kernel
from .signature import decorate, parse_signature

__all__ = ["BodyKernel", "KernelForm", "SourceKernel", "read_kernel"]

MAX_SOURCE = 1 << 20
"""Characters of a kernel's source."""


class KernelForm(Protocol):
    """A kernel as a user sent it."""

    def for_values(self, values: Sequence[Any]) -> UserKernel:
        """Return the kernel to launch for these arrays and numbers."""


class SourceKernel:
    """MXNet 1's form: one kernel of a source, with a signature.

    Args:
        device_type: "cpu" or "gpu".
        name: of the kernel.
        source, signature, options, exports: see `compile_kernel` and `parse_signature`.
    """

    def __init__(
        self,
        device_type: str,
        name: str,
        source: str,
        signature: str,
        options: Sequence[str] = (),
        exports: Sequence[str] = (),
    ) -> None:
        self._compiled = compile_kernel(device_type, source, name, parse_signature(name, signature), options, exports)

    def for_values(self, values: Sequence[Any]) -> UserKernel:
        """The kernel, whatever the values."""
        return self._compiled


class BodyKernel:
    """MXNet 0.9's form: a body that sees its arrays' dimensions as constants, so each set of shapes is code of its own.

    Args:
        device_type: "cpu" or "gpu".
        name: of the kernel.
        inputs, outputs: names of the arrays.
        body: what stands between the braces.
        options: for the compiler.
    """

    def __init__(
        self,
        device_type: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        body: str,
        options: Sequence[str],
    ) -> None:
        self._device_type = device_type
        self._name = name
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._body = body
        self._options = tuple(options)
        self._last: tuple[Any, UserKernel] | None = None

    def for_values(self, values: Sequence[Any]) -> UserKernel:
        """The kernel for the values' shapes and types, compiled if it has not been.

        Raises:
            BadRequestError: another number of values, one that is no array, or the body does not compile.
        """
        names = (*self._inputs, *self._outputs)
        if len(values) != len(names):
            raise BadRequestError(
                f"kernel {self._name!r}: expected {len(names)} arrays ({', '.join(names)}), got {len(values)}"
            )
        for name, value in zip(names, values, strict=True):
            if not hasattr(value, "shape"):
                raise BadRequestError(f"kernel {self._name!r}: argument {name!r}: expected an array, got {value!r}")
        form = tuple((tuple(value.shape), value.dtype) for value in values)
        if self._last is None or self._last[0] != form:
            described = [(name, *spec) for name, spec in zip(names, form, strict=True)]
            cut = len(self._inputs)
            source, arguments = decorate(self._name, described[:cut], described[cut:], self._body)
            compiled = compile_kernel(self._device_type, source, self._name, arguments, self._options)
            self._last = (form, compiled)
        return self._last[1]


def read_kernel(device_type: str, command: Mapping[str, Any], array: Any) -> KernelForm:
    """The kernel that a `compile` command tells of, compiled.

    Args:
        device_type: "cpu" or "gpu".
        command: `kernel`; `source`, `signature`, `options` and `exports`, or `body`, `inputs` and `outputs` (ids by
            name).
        array: the array of an id.

    Raises:
        BadRequestError: both forms or neither, too long a text, or it does not compile.
    """
    name, source, body = command["kernel"], command.get("source"), command.get("body")
    if (source is None) == (body is None):
        raise BadRequestError(f"kernel {name!r}: expected either a source, or a body with inputs and outputs")
    length = len(source or body or "")
    if length > MAX_SOURCE:
        raise BadRequestError(f"kernel {name!r}: expected a source of at most {MAX_SOURCE} characters, got {length}")
    options = command.get("options") or ()
    if source is not None:
        return SourceKernel(
            device_type, name, source, command.get("signature", ""), options, command.get("exports") or ()
        )
    assert body is not None
    ins, outs = command.get("inputs") or {}, command.get("outputs") or {}
    kernel = BodyKernel(device_type, name, [*ins], [*outs], body, options)
    kernel.for_values([array(id) for group in (ins, outs) for id in group.values()])
    return kernel
