"""SamplesAhead: samples of an `ImageIter` that are read and decoded before they are taken."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, ref

from opbox_protocol.signal_shield import shielded

from ..imaging import Image
from ..io.decoding_threads import DecodingThreads, DecodingWork

if TYPE_CHECKING:
    from .image_iter import ImageIter

__all__ = ["SamplesAhead"]

_THREADS = 4
"""Threads that decode, where MXNET_CPU_WORKER_NTHREADS does not say how many."""


class _EarlySample:
    """A sample that was read, or what reading raised.

    Attributes:
        label, data, place: what was read, and which sample it is, for errors.
        after: the position behind it.
        error: what reading it raised: StopIteration at the end of the images.
        work: its decoding, once it was asked for.
    """

    __slots__ = ("after", "data", "error", "label", "place", "work")

    def __init__(self, after: int) -> None:
        self.after = after
        self.label: Any = None
        self.data = b""
        self.place = ""
        self.error: Exception | None = None
        self.work: DecodingWork[Image] | None = None


class SamplesAhead:
    """Reads samples in their order, and has threads decode them.

    Reading stops at the end of the images, and at an error, until these are taken: what follows may depend on what
    the caller does then.

    Args:
        images: the iterator, which is not kept alive: its threads end with it.
        ahead: whether samples may be read before they are taken.

    Attributes:
        taken: the position behind the last sample that was taken.
    """

    def __init__(self, images: ImageIter, ahead: bool) -> None:
        self._images = ref(images)
        self._decoded = WeakMethod(images.decode_sample)
        self._ahead = ahead
        self._threads = DecodingThreads(int(os.environ.get("MXNET_CPU_WORKER_NTHREADS", _THREADS)))
        self._coming: deque[_EarlySample] = deque()
        self.taken = self._read = 0

    def go_to(self, position: int) -> None:
        """Drop what was read, and go on at another position."""
        self._coming.clear()
        self.taken = self._read = position

    def next_sample(self) -> tuple[Any, bytes]:
        """The label and the encoded image of the next sample.

        Raises: what reading it raised; StopIteration at the end of the images.
        """
        sample = self._pop()
        if sample.error is not None:
            raise sample.error
        return sample.label, sample.data

    def take(self, count: int, ahead: int) -> tuple[list[tuple[Any, str, Image]], bool]:
        """The labels, places and images of up to so many samples, and whether the images are at their end.

        Args:
            count: how many.
            ahead: how many more may be read and decoded meanwhile.

        Raises: what reading or decoding the first sample that failed raised; the others are passed over.
        """
        samples: list[_EarlySample] = []
        ended = False
        while len(samples) < count and not ended:
            sample = self._pop() if self._ahead else self._by_subclass()
            if isinstance(sample.error, StopIteration):
                ended = True
            elif sample.error is not None:
                raise sample.error
            else:
                self._decode(sample)
                samples.append(sample)
        while self._ahead and not ended and len(self._coming) < ahead:
            if self._coming and self._coming[-1].error is not None:
                break
            shielded(self._read_one)
            self._decode(self._coming[-1])
        return [(sample.label, sample.place, _image(sample)) for sample in samples], ended

    def _pop(self) -> _EarlySample:
        if not self._coming:
            shielded(self._read_one)
        sample = self._coming.popleft()
        self.taken = sample.after
        return sample

    def _by_subclass(self) -> _EarlySample:
        """The sample that the iterator's own `next_sample` returns."""
        images = self._images()
        assert images is not None
        sample = _EarlySample(self._read)
        try:
            sample.label, sample.data = images.next_sample()
            sample.place = images.place_of_sample()
        except Exception as error:
            sample.error = error
        return sample

    def _read_one(self) -> None:
        """Read the next sample into what is coming."""
        images = self._images()
        assert images is not None
        sample = _EarlySample(self._read)
        try:
            sample.label, sample.data, sample.place, sample.after = images.read_sample(self._read)
        except StopIteration as end:
            sample.error, sample.after = end, end.value
        except Exception as error:
            sample.error, sample.after = error, self._read + 1
        self._read = sample.after
        self._coming.append(sample)

    def _decode(self, sample: _EarlySample) -> None:
        if sample.work is None and sample.error is None:
            sample.work = self._threads.begin(_Decoding(self._decoded), [(sample.data, sample.place)])


class _Decoding:
    """Decodes a sample by its iterator's method, as long as the iterator is there."""

    __slots__ = ("_method",)

    def __init__(self, method: WeakMethod[Any]) -> None:
        self._method = method

    def __call__(self, sample: tuple[bytes, str]) -> Any:
        method = self._method()
        return None if method is None else method(*sample)


def _image(sample: _EarlySample) -> Image:
    assert sample.work is not None
    (image,) = sample.work.results()
    return image
