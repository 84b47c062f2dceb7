"""The GPU: CuPy arrays. The only file that imports CuPy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cupy
import cupyx
import cupyx.scipy.special
import numpy as np

from ..cuda import cublas, cublaslt, cufft, nccl, shared_libraries, stream_scratch
from ..cuda.array_module import ArrayModule
from ..cuda.random import NORMAL, UNIFORM, StreamPlace, draw, write_place
from ..cudnn import library as cudnn
from ..cudnn import search
from . import graphs
from .base import Admit, RecordedCalls, admit_all
from .compiler_options import set_options
from .device_memory import DeviceMemory
from .device_scope import DeviceScope
from .kernel_cache import name_own_folder, read_shared_kernels
from .random import RandomSource
from .staging import Staging

__all__ = ["CupyBackend", "CupyStream", "SessionBackend"]

_WORDS = 8
"""Words of 32 bits of a block of a stream."""
_MEMORY = DeviceMemory(cupy, search.give_way)
name_own_folder()
read_shared_kernels(cupy.cuda.compiler)
set_options(cupy.cuda.compiler)
shared_libraries.prefer(cupy.cuda.runtime.runtimeGetVersion() // 1000)
cublaslt.attach(cupy)
cufft.attach(cupy)
cudnn.attach(cupy)
nccl.attach(cupy)


class CupyStream:
    """Philox on the device: uniform numbers are the CPU's, bit for bit; normal ones, and CuPy's others, are its own."""

    def __init__(self) -> None:
        self._seed: int | tuple[int, ...] = 0
        self._generator: Any = None
        self._key, self._counter = (0, 0), (0, 0, 0)
        self._where: Any = None
        self._words = 0

    def seed(self, seed: int) -> None:
        low, high = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._begin(seed, (int(low), int(high)), (0, 0, 0), None)

    def place(self, key: tuple[int, int], counter: tuple[int, int, int, int]) -> None:
        self._begin((*key, *counter), key, counter[1:], None)

    def place_recorded(self, where: Any, node: int, counter: tuple[int, int]) -> None:
        """Go to a node's place in the executor and run that `where` has when the draw is replayed."""
        self._begin(0, (0, node), (*counter, 0), where)

    def write_place(self, where: Any, seed: int, executor: int, run: int) -> None:
        """Write what recorded draws read."""
        write_place(cupy, where, seed, executor, run)

    def _begin(
        self, seed: int | tuple[int, ...], key: tuple[int, int], counter: tuple[int, int, int], where: Any
    ) -> None:
        self._seed, self._key, self._counter, self._where = seed, key, counter, where
        # Made when it is first drawn from: it has a state for each thread of the device.
        self._generator = None
        self._words = 0

    def state(self) -> dict[str, Any]:
        seed = [self._seed] if isinstance(self._seed, int) else list(self._seed)
        # CuPy's own generator cannot be carried over: it begins a stream that it has not drawn from.
        seed += [len(seed)] * (self._generator is not None)
        return {"seed": seed, "key": list(self._key), "counter": list(self._counter), "words": self._words}

    def restore(self, state: Mapping[str, Any]) -> None:
        seed, (k0, k1), (c1, c2, c3) = state["seed"], state["key"], state["counter"]
        self._begin(seed[0] if len(seed) == 1 else tuple(seed), (k0, k1), (c1, c2, c3), None)
        self._words = state["words"]

    @property
    def generator(self) -> Any:
        if self._where is not None:
            raise RuntimeError("CuPy's generators have their place on the host: no graph can repeat them")
        if self._generator is None:
            self._generator = cupy.random.Generator(cupy.random.Philox4x3210(self._seed))
        return self._generator

    def reserve(self, blocks: int) -> StreamPlace:
        """The next blocks of the stream, four words of 64 bits each, for a kernel that draws from them itself."""
        first = -(-self._words // _WORDS)
        self._words = (first + blocks) * _WORDS
        return StreamPlace(first, self._where, self._key, self._counter)

    def _fill(self, kernel: Any, out: Any) -> bool:
        """Fill `out` with the numbers that follow, if a kernel can."""
        if out.dtype not in (np.float32, np.float64) or not out.flags.c_contiguous:
            return False
        words = 2 if out.dtype == np.float64 else 1
        first = -(-self._words // words)
        draw(cupy, kernel, out, first, self._where, self._key, self._counter)
        self._words = (first + out.size) * words
        return True

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        if self._fill(UNIFORM, out):
            if not (isinstance(low, float) and low == 0.0 and isinstance(high, float) and high == 1.0):
                _scale(out, high - low, low)
        else:
            drawn = self.generator.random(size=out.shape)
            out[...] = drawn * (high - low) + low

    def normal(self, out: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        if self._fill(NORMAL, out):
            if not (isinstance(loc, float) and loc == 0.0 and isinstance(scale, float) and scale == 1.0):
                _scale(out, scale, loc)
        else:
            drawn = self.generator.standard_normal(size=out.shape)
            out[...] = drawn * scale + loc

    def exponential(self, out: Any, scale: Any) -> None:
        out[...] = self.generator.exponential(scale, out.shape)

    def gamma(self, out: Any, shape: Any, scale: Any) -> None:
        out[...] = self.generator.gamma(shape, scale, out.shape)


def _scale(out: Any, factor: Any, plus: Any) -> None:
    """out · factor + plus, with numbers or arrays that broadcast to out."""
    cupy.multiply(out, factor, out=out, casting="same_kind")
    cupy.add(out, plus, out=out, casting="same_kind")


class CupyBackend:
    """See Backend."""

    device_type = "gpu"
    xp: Any = ArrayModule(cupy)
    special: Any = cupyx.scipy.special

    def __init__(self, device: int = 0) -> None:
        self.device = cupy.cuda.Device(device)
        with self.scope():
            # Every kernel needs it, and a machine without it is to say so now.
            cupy.cuda.nvrtc.getVersion()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cupy.zeros(shape, dtype)

    def view(
        self, arena: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> Any:
        if strides is not None:
            return cupy.ndarray(shape, dtype, arena.data + offset, strides)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return arena[offset : offset + nbytes].view(dtype).reshape(shape)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        return cupy.asarray(np.asarray(host, order="C"))

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        if target.flags.c_contiguous and host.dtype == target.dtype:
            target.set(np.asarray(host, order="C"))
            # It may still be read, as it is not page-locked; what `asarray` copies from is.
            cupy.cuda.get_current_stream().synchronize()
        else:
            target[...] = cupy.asarray(np.asarray(host, order="C"))

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = cupy.asnumpy(array)
        return host

    def random(self, seed: int) -> RandomSource:
        return RandomSource(CupyStream, seed)

    def memory(self) -> tuple[int, int]:
        free, whole = self.device.mem_info
        return int(whole - free), int(whole)

    def synchronize(self) -> None:
        cupy.cuda.Stream.null.synchronize()

    def scope(self) -> DeviceScope:
        return DeviceScope(cupy.cuda.runtime, self.device.id)

    def capture(self, calls: Sequence[Callable[[], Any]]) -> RecordedCalls | None:
        return graphs.capture(cupy, calls)

    def give_back(self) -> None:
        with self.scope(), graphs.undisturbed():
            _MEMORY.give_back()

    def for_session(self, admit: Admit = admit_all) -> SessionBackend:
        return SessionBackend(self.device, admit)

    def close(self) -> None:
        """The default queue is everybody's."""


class SessionBackend(CupyBackend):
    """A device with a stream that waits for no other: of a session.

    Arrays that are made in its scope have memory that only this stream uses again.
    """

    def __init__(self, device: Any, admit: Admit = admit_all) -> None:
        self.device = device
        self._runtime, self._number = cupy.cuda.runtime, device.id
        with super().scope():
            self.stream = cupy.cuda.Stream(non_blocking=True)
        self._staging = Staging(cupy, self.stream, admit)
        cublas.add_workspace(self.stream.ptr, admit)
        stream_scratch.add_stream(self.stream.ptr, admit)

    def scope(self) -> DeviceScope:
        return DeviceScope(self._runtime, self._number, self.stream)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        host = np.asarray(host, order="C")
        with self.scope():
            target = cupy.empty(host.shape, host.dtype)
            self._staging.upload(target, host)
        return target

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        if target.flags.c_contiguous and host.dtype == target.dtype:
            with self.scope():
                self._staging.upload(target, np.asarray(host, order="C"))
        else:
            source = self.put(host)
            with self.scope():
                target[...] = source

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        with self.scope():
            return self._staging.download(array if array.flags.c_contiguous else cupy.ascontiguousarray(array))

    def synchronize(self) -> None:
        self.stream.synchronize()

    def close(self) -> None:
        # A device that was lost has nothing more to wait for, and what the process holds of it goes all the same. At
        # the interpreter's end CuPy takes every device for number 0, and refuses the others' streams.
        with contextlib.suppress(RuntimeError), self.scope():
            self.stream.synchronize()
        with contextlib.suppress(RuntimeError):
            self._staging.close()
        cublas.drop_workspace(self.stream.ptr)
        stream_scratch.drop_stream(self.stream.ptr)
        search.drop(self.stream.ptr)
        with contextlib.suppress(RuntimeError), self.scope(), graphs.undisturbed():
            _MEMORY.give_back(self.stream)
