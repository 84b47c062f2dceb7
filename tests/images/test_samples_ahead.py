"""ImageIter decodes one batch ahead: the same batches, errors at their batch, threads that end, forks."""

from __future__ import annotations

import gc
import multiprocessing
import random
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx

from .cases import FILES

NAMES = ["a.png", "b.jpg", "grey.jpg", "b.jpg", "a.png", "grey.jpg", "a.png"]
BATCH = 2


class AtOnce(mx.image.ImageIter):
    """Reads nothing ahead, as it has a method of its own."""

    def read_image(self, fname: str) -> bytes:
        return super().read_image(fname)


class Counted(mx.image.ImageIter):
    """Counts what it decodes, and tells when it has decoded two batches."""

    def __init__(self, **arguments: Any) -> None:
        self.count = 0
        self.counting = threading.Lock()
        self.two_batches = threading.Event()
        super().__init__(**arguments)

    def imdecode(self, s: bytes) -> Any:
        with self.counting:
            self.count += 1
            if self.count == 2 * BATCH:
                self.two_batches.set()
        return super().imdecode(s)


def listed(kind: Any = mx.image.ImageIter, names: list[str] = NAMES, root: Path = FILES, **arguments: Any) -> Any:
    images = [[number, name] for number, name in enumerate(names)]
    return kind(batch_size=BATCH, data_shape=(3, 8, 8), imglist=images, path_root=str(root), **arguments)


def labels(iterator: Any) -> list[list[float]]:
    return [batch.label[0].asnumpy().tolist() for batch in iterator]


def test_the_next_batch_is_decoded_before_it_is_asked_for() -> None:
    iterator = listed(Counted)
    next(iterator)
    assert iterator.two_batches.wait(60)
    assert iterator.count == 2 * BATCH, "and no more than that one"
    assert iterator.cur == BATCH


@pytest.mark.parametrize("handle", ["pad", "discard", "roll_over"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_an_iterator_that_reads_at_once(handle: str, shuffle: bool) -> None:
    epochs = []
    for kind in (mx.image.ImageIter, AtOnce):
        random.seed(7)
        np.random.seed(7)
        iterator = listed(kind, shuffle=shuffle, last_batch_handle=handle, rand_crop=True, rand_mirror=True)
        batches = []
        for epoch in range(4):
            iterator.reset()
            for number, batch in enumerate(iterator):
                batches.append((batch.pad, batch.label[0].asnumpy().tolist(), batch.data[0].asnumpy().tolist()))
                if epoch == 2 and number == 0 and handle != "roll_over":
                    break  # the next epoch begins at the first image, whatever was read ahead
        epochs.append(batches)
    assert epochs[0] == epochs[1]


def test_an_error_is_raised_at_its_batch(tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_bytes((FILES / name).read_bytes())
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    iterator = listed(names=["a.png", "b.jpg", "broken.jpg", "a.png", "b.jpg", "absent.jpg", "a.png"], root=tmp_path)
    assert next(iterator).label[0].asnumpy().tolist() == [0, 1]
    with pytest.raises(RuntimeError, match=r"broken image broken\.jpg: imdecode: buf: expected a JPEG"):
        next(iterator)
    with pytest.raises(mx.MXNetError, match=r"absent\.jpg"):
        next(iterator)
    assert next(iterator).label[0].asnumpy().tolist() == [6, 0]
    iterator.reset()
    assert next(iterator).label[0].asnumpy().tolist() == [0, 1]


def test_samples_taken_one_by_one_follow_the_batches() -> None:
    iterator = listed()
    next(iterator)
    assert iterator.next_sample()[0] == 2
    assert next(iterator).label[0].asnumpy().tolist() == [3, 4]
    iterator.cur = 1
    assert next(iterator).label[0].asnumpy().tolist() == [1, 2]


def test_a_next_sample_of_ones_own_is_called_when_its_sample_is_taken() -> None:
    class Own(mx.image.ImageIter):
        calls = 0

        def next_sample(self) -> Any:
            self.calls += 1
            return super().next_sample()

    iterator = listed(Own)
    next(iterator)
    assert iterator.calls == BATCH
    assert labels(iterator) == [[2, 3], [4, 5], [6, 0]]


@pytest.mark.parametrize("kind", [mx.image.ImageIter, Counted])
def test_threads_end_with_the_iterator(kind: Any) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "opbox-decode"}
    iterator = listed(kind)
    next(iterator)
    threads = [t for t in threading.enumerate() if t.name == "opbox-decode" and t not in before]
    assert threads
    del iterator
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def _child(iterator: Any, answers: Any) -> None:
    answers.put(labels(iterator))


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_takes_what_was_read_ahead() -> None:
    context = multiprocessing.get_context("fork")
    iterator, answers = listed(), context.Queue()
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forks beside threads: what is tried here
        child = context.Process(target=_child, args=(iterator, answers))
        child.start()
    assert answers.get(timeout=60) == [[2, 3], [4, 5], [6, 0]]
    child.join(60)
    assert child.exitcode == 0
    assert labels(iterator) == [[2, 3], [4, 5], [6, 0]]


def test_a_program_ends_while_images_are_decoded() -> None:
    program = (
        "import atexit, threading\n"
        "decoding = lambda: [thread for thread in threading.enumerate() if thread.name == 'opbox-decode']\n"
        "atexit.register(lambda: print(len(decoding()), 'threads'))\n"
        "import opbox as mx\n"
        f"images = [[0, 'b.jpg']] * 64\n"
        f"it = mx.image.ImageIter(32, (3, 8, 8), imglist=images, path_root={str(FILES)!r})\n"
        "print(next(it).data[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(32, 3, 8, 8)\n0 threads\n", "")
