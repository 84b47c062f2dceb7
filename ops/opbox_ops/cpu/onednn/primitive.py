"""oneDNN's primitives, made from shapes and bound to arrays.

A `PrimitiveKernel` is a primitive for given shapes, types and layouts, with the reorders around it where oneDNN wants
an array to lie otherwise than it does. It is made when a plan is compiled, says what scratch it needs (`temps`, planned
in the arena), and is bound to arrays once (`bind`): a run executes prepared arguments, and allocates nothing.

    kernel = PrimitiveKernel.of("pooling_forward", operands, lambda source, target: (…, source, target, *window))
    call = kernel.bind(temps, arrays)
    call()
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compute import Array, ArraySpec, Mode, Temp
from ..runtime.memory_format import MemoryFormat
from ..runtime.packed_runs import PackedRuns
from .library import ANY, DATA_TYPES, ArgumentNumber, ExecutionArgument, Library, Query, dims, failed, library

__all__ = ["Operand", "PrimitiveKernel", "Runs", "have_elements", "takes"]

_SLOW = "ref"
"""How the names of oneDNN's loops without vectors begin: NumPy is faster."""
_USER_SCRATCHPAD = 1
"""`dnnl_scratchpad_mode_user`."""


def takes(*arrays: ArraySpec) -> bool:
    """Return whether oneDNN is installed and takes arrays like these: of a type that it has, all with elements."""
    return have_elements(*arrays) and library() is not None


def have_elements(*arrays: ArraySpec) -> bool:
    """Return whether all arrays have elements, of 32 or 16 bits: what kernels for the CPU compute."""
    return all(array.dtype.name in DATA_TYPES and math.prod(array.shape) for array in arrays)


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that a primitive reads or writes.

    Attributes:
        argument: which one.
        memory: how it lies.
        query: what the primitive's description calls it, for its layout there; None: as it lies.
        free: whether oneDNN chooses a layout; the array is then reordered before or after.
        written: whether the primitive writes it.
    """

    argument: ArgumentNumber
    memory: MemoryFormat
    query: Query | None = None
    free: bool = False
    written: bool = False


class Runs:
    """Primitives with their arguments, to be executed one after the other."""

    __slots__ = ("_calls", "_copies", "_execute", "_keep", "_stream")

    def __init__(self, dnnl: Library) -> None:
        self._execute, self._stream = dnnl.execute, dnnl.stream
        self._copies: list[tuple[Array, Array]] = []
        self._calls: list[tuple[int, int, Any]] = []
        self._keep: list[Any] = []

    def __call__(self) -> None:
        execute, stream = self._execute, self._stream
        for target, source in self._copies:
            np.copyto(target, source)
        for primitive, count, arguments in self._calls:
            status = execute(primitive, stream, count, arguments)
            if status:
                failed("primitive_execute", status)

    def add(self, primitive: _Primitive, memories: dict[ArgumentNumber, _Bound], scratchpad: Array) -> None:
        """Append an execution of `primitive` on these arrays, which stay alive with it."""
        if primitive.scratchpad:
            wanted = primitive.memory(Query.SCRATCHPAD)
            assert wanted is not None
            memories[ArgumentNumber.SCRATCHPAD] = _Bound(primitive.dnnl, wanted, _address(scratchpad))
        arguments = (ExecutionArgument * len(memories))()
        for slot, (argument, memory) in zip(arguments, memories.items(), strict=True):
            slot.argument, slot.memory = argument, memory.handle
        self._calls.append((primitive.handle, len(memories), arguments))
        self._keep += (primitive, memories, scratchpad)

    def copy(self, target: Array, source: Array) -> None:
        """Append a copy, which is made before all primitives."""
        self._copies.append((target, source))

    def keep(self, array: Array) -> Array:
        """The array, kept alive as long as these, or a contiguous one that it is copied to before they run."""
        if not array.flags.c_contiguous:
            strided, array = array, np.empty(array.shape, array.dtype)
            self.copy(array, strided)
        self._keep.append(array)
        return array


class _Primitive:
    """A primitive and its description, destroyed with this object."""

    def __init__(self, dnnl: Library, description: int) -> None:
        self.dnnl, self.description = dnnl, description
        self.handle = dnnl.create("primitive_create", description)
        self.scratchpad = dnnl.bytes_of(self.memory(Query.SCRATCHPAD))
        # Not at exit: a thread may run it still, and the process lets go of it anyway.
        weakref.finalize(self, _destroy, dnnl, description, self.handle).atexit = False

    def memory(self, query: Query) -> int | None:
        return self.dnnl.memory_of(self.description, query)


def _destroy(dnnl: Library, description: int, primitive: int) -> None:
    dnnl.call("primitive_destroy", primitive)
    dnnl.call("primitive_desc_destroy", description)


class _Bound:
    """oneDNN's memory object over an array."""

    def __init__(self, dnnl: Library, memory: int, address: int) -> None:
        self.handle = dnnl.create("memory_create", memory, dnnl.engine, address)
        weakref.finalize(self, dnnl.call, "memory_destroy", self.handle).atexit = False


class PrimitiveKernel:
    """A primitive with the reorders around it; see the module.

    Attributes:
        operands: its arrays, in the order in which `bind` takes them.
        temps: the temporary arrays it needs: scratchpad, workspace, and an array for each operand that is reordered.
    """

    def __init__(self, dnnl: Library, primitive: _Primitive, operands: Sequence[Operand], plain: list[int]) -> None:
        self._dnnl, self._primitive = dnnl, primitive
        self.operands = tuple(operands)
        self._inner: list[int | None] = []
        for operand, description in zip(operands, plain, strict=True):
            wanted = primitive.memory(operand.query) if operand.free and operand.query is not None else None
            self._inner.append(None if wanted is None or dnnl.same(wanted, description) else wanted)
        self._reorders = [
            None if inner is None else self._reorder(operand, inner)
            for operand, inner in zip(operands, self._inner, strict=True)
        ]
        scratchpad = max(p.scratchpad for p in (primitive, *self._reorders) if p is not None)
        sizes = [scratchpad, *(dnnl.bytes_of(inner) for inner in self._inner if inner is not None)]
        self.temps = tuple([Temp((size,), np.uint8) for size in sizes])

    @classmethod
    def of(
        cls,
        name: str,
        operands: Sequence[Operand],
        arguments: Callable[..., Sequence[Any]],
        hint: PrimitiveKernel | None = None,
        single: bool = False,
        adds: bool = False,
    ) -> PrimitiveKernel | None:
        """A kernel of the primitive `name`.

        Args:
            name: as in `dnnl_<name>_primitive_desc_create`.
            operands: its arrays.
            arguments: from the descriptions of the operands to the arguments of that function between the engine and
                the attributes, less the hint.
            hint: for a backward primitive, the forward one.
            single: whether it is to run in one thread.
            adds: whether it adds to what is in the array that it writes.

        Returns:
            None where oneDNN has no implementation but loops without vectors, or is not installed.
        """
        dnnl = library()
        if dnnl is None:
            return None
        handles = [_describe(dnnl, operand.memory, operand.free) for operand in operands]
        plain = [_describe(dnnl, operand.memory) for operand in operands]
        attributes = _attributes(dnnl, adds)
        try:
            hints = () if hint is None else (hint._primitive.description,)
            with dnnl.single_thread() if single else nullcontext():
                description = dnnl.describe(name, *arguments(*handles), *hints, attributes)
                if description is None:
                    return None
                if dnnl.implementation(description).startswith(_SLOW):
                    dnnl.call("primitive_desc_destroy", description)
                    return None
                return cls(dnnl, _Primitive(dnnl, description), operands, plain)
        finally:
            dnnl.call("primitive_attr_destroy", attributes)
            for handle in (*handles, *plain):
                dnnl.call("memory_desc_destroy", handle)

    @property
    def implementation(self) -> str:
        """The name of the implementation that oneDNN chose."""
        return self._dnnl.implementation(self._primitive.description)

    @property
    def reordered(self) -> int:
        """Return how many arrays are reordered in a run."""
        return sum(inner is not None for inner in self._inner)

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """The operands that are read and reordered, each with the position in `temps` of its reordered copy."""
        scratches = [k for k, inner in enumerate(self._inner) if inner is not None]
        return tuple([(k, t) for t, k in enumerate(scratches, 1) if not self.operands[k].written])

    @property
    def workspace(self) -> Temp:
        """Describe the workspace that forward leaves for its backward primitive; of no bytes where it leaves none."""
        return Temp((self._dnnl.bytes_of(self._primitive.memory(Query.WORKSPACE)),), np.uint8)

    def bind(
        self,
        temps: Sequence[Array],
        arrays: Sequence[Array],
        runs: Runs | None = None,
        workspace: Array | None = None,
        packing: Runs | None = None,
    ) -> Runs:
        """Return a call that runs the kernel on these arrays.

        Args:
            temps: arrays as `temps` says.
            arrays: for each operand an array of as many elements, in C order, or with the strides of the operand's
                memory; one that is read may have others.
            runs: where to append it; by default it stands alone.
            workspace: an array as `workspace` says: written by a forward primitive, read by its backward one.
            packing: where to append the reorders of what is read, to be run before; by default with the rest.
        """
        runs = self.runs() if runs is None else runs
        before = runs if packing is None else packing
        scratches = iter([runs.keep(scratch) for scratch in temps[1:]])
        arguments: dict[ArgumentNumber, _Bound] = {}
        after: list[tuple[_Primitive, dict[ArgumentNumber, _Bound]]] = []
        for operand, inner, reorder, array in zip(self.operands, self._inner, self._reorders, arrays, strict=True):
            if inner is None or reorder is None:
                arguments[operand.argument] = self._plain(operand, array, runs)
                continue
            outside = self._plain(operand, array, runs if operand.written else before)
            inside = _Bound(self._dnnl, inner, _address(next(scratches)))
            arguments[operand.argument] = inside
            if operand.written:
                after.append((reorder, {ArgumentNumber.SOURCE: inside, ArgumentNumber.DESTINATION: outside}))
            else:
                before.add(reorder, {ArgumentNumber.SOURCE: outside, ArgumentNumber.DESTINATION: inside}, temps[0])
        wanted = self._primitive.memory(Query.WORKSPACE)
        if wanted is not None and workspace is not None:
            arguments[ArgumentNumber.WORKSPACE] = _Bound(self._dnnl, wanted, _address(workspace))
        runs.add(self._primitive, arguments, temps[0])
        for primitive, pair in after:
            runs.add(primitive, pair, temps[0])
        return runs

    def rebound(self, temps: Sequence[Array]) -> Callable[[Sequence[Array]], None]:
        """Return a call that takes its arrays each time, in the order of `bind`; none of them may be reordered."""
        assert not self.reordered
        dnnl, primitive = self._dnnl, self._primitive
        bound = {}
        for operand in self.operands:
            memory = _describe(dnnl, operand.memory)
            bound[operand.argument] = _Bound(dnnl, memory, 0)
            dnnl.call("memory_desc_destroy", memory)
        runs = Runs(dnnl)
        handles = [memory.handle for memory in bound.values()]
        runs.add(primitive, bound, temps[0])
        point = dnnl.point

        def run(arrays: Sequence[Array]) -> None:
            copies = [array if array.flags.c_contiguous else np.ascontiguousarray(array) for array in arrays]
            for handle, array in zip(handles, copies, strict=True):
                point(handle, array.__array_interface__["data"][0])
            runs()

        return run

    def runs(self) -> Runs:
        """Runs of nothing, for `bind` to append to."""
        return Runs(self._dnnl)

    def packed(self, temps: Sequence[Array], arrays: Sequence[Array], mode: Mode) -> PackedRuns:
        """The same as `bind`, with what is read and reordered packed only where `mode` says that it is to be."""
        packing = self.runs()
        return PackedRuns(packing, self.bind(temps, arrays, packing=packing), mode)

    def pack(self, k: int, scratchpad: Array, array: Array, scratch: Array) -> Runs:
        """Return a call that lays operand `k` out as the primitive reads it, in `scratch`: its temporary of `bind`."""
        inner, reorder, runs = self._inner[k], self._reorders[k], self.runs()
        assert inner is not None
        assert reorder is not None
        outside = self._plain(self.operands[k], array, runs)
        inside = _Bound(self._dnnl, inner, _address(runs.keep(scratch)))
        runs.add(reorder, {ArgumentNumber.SOURCE: outside, ArgumentNumber.DESTINATION: inside}, scratchpad)
        return runs

    def bind_packed(self, temps: Sequence[Array], arrays: Sequence[Array]) -> Runs:
        """The same as `bind`, where `pack` has laid out beforehand what is read and reordered."""
        return self.bind(temps, arrays, packing=self.runs())

    def _plain(self, operand: Operand, array: Array, runs: Runs) -> _Bound:
        """The memory object of an operand's array as it lies."""
        memory = _describe(self._dnnl, operand.memory)
        try:
            return _Bound(self._dnnl, memory, _address(runs.keep(array)))
        finally:
            self._dnnl.call("memory_desc_destroy", memory)

    def _reorder(self, operand: Operand, inner: int) -> _Primitive:
        plain = _describe(self._dnnl, operand.memory)
        attributes = _attributes(self._dnnl)
        try:
            source, target = (inner, plain) if operand.written else (plain, inner)
            engine = self._dnnl.engine
            description = self._dnnl.describe("reorder", source, engine, target, engine, attributes)
            assert description is not None
            return _Primitive(self._dnnl, description)
        finally:
            self._dnnl.call("primitive_attr_destroy", attributes)
            self._dnnl.call("memory_desc_destroy", plain)


def _describe(dnnl: Library, memory: MemoryFormat, free: bool = False) -> int:
    """A description of an array, to be destroyed; with `free`, one whose layout oneDNN chooses."""
    shape, dtype = dims(memory.shape), DATA_TYPES[memory.dtype]
    if free:
        return dnnl.create("memory_desc_create_with_tag", len(memory.shape), shape, dtype, ANY)
    return dnnl.create("memory_desc_create_with_strides", len(memory.shape), shape, dtype, dims(memory.strides))


def _attributes(dnnl: Library, adds: bool = False) -> int:
    attributes = dnnl.create("primitive_attr_create")
    dnnl.call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
    if adds:
        chain = dnnl.create("post_ops_create")
        dnnl.call("post_ops_append_sum", chain, 1.0, 0, 0)  # of the type that the array has
        dnnl.call("primitive_attr_set_post_ops", attributes, chain)
        dnnl.call("post_ops_destroy", chain)
    return attributes


def _address(array: Array) -> int:
    return int(array.ctypes.data)
