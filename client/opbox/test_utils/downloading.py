"""`download`, which finds files on this machine and downloads nothing; an iterator that repeats one batch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from opbox_protocol.errors import MXNetError

from ..file_errors import file_errors
from ..io import DataIter

__all__ = ["DummyIter", "download"]


def download(
    url: str, fname: str | None = None, dirname: str | None = None, overwrite: bool = False, retries: int = 5
) -> str:
    """Return the path that MXNet would download `url` to, if a file lies there.

    Args:
        url: its last part is the file's name, unless `fname` says another. What it names on this machine ("file:", or
            a path) is copied.
        fname: the file's name, or its path.
        dirname: the folder; that of `fname` by default.
        overwrite: copy though there is a file; of a URL elsewhere nothing can be downloaded anew.
        retries: taken, and without effect.

    Raises:
        MXNetError: there is no such file, and `url` is of another machine.

    Example:
        >>> mx.test_utils.download("http://data.mxnet.io/data/mnist/train-images-idx3-ubyte.gz", dirname="data")
        'data/train-images-idx3-ubyte.gz'
    """
    if retries < 0:
        raise AssertionError(f"download: retries: expected 0 or more, got {retries}")
    name = url.split("/")[-1] if fname is None else fname
    path = name if dirname is None else os.path.join(dirname, name)
    parts = urlsplit(url)
    source = unquote(parts.path) if parts.scheme == "file" else url if not parts.scheme else None
    if source is not None and Path(source).exists() and (overwrite or not os.path.exists(path)):
        with file_errors(path, "written"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            if not (os.path.exists(path) and os.path.samefile(source, path)):
                shutil.copyfile(source, path)
    if not os.path.exists(path) or (overwrite and source is None):
        why = "overwrite=True asks for a new copy" if os.path.exists(path) else "there is none"
        raise MXNetError(
            f"download: expected the file of {url} at {os.path.abspath(path)}, but {why}; opbox downloads nothing: "
            "fetch it yourself and put it there"
        )
    return path


class DummyIter(DataIter):
    """The first batch of an iterator, again and again: for measuring speed without input.

    Args:
        real_iter: the iterator; it gives one batch.
    """

    def __init__(self, real_iter: Any) -> None:
        super().__init__()
        self.real_iter = real_iter
        self.provide_data = real_iter.provide_data
        self.provide_label = real_iter.provide_label
        self.batch_size = real_iter.batch_size
        self.the_batch = next(real_iter)

    def __iter__(self) -> DummyIter:
        return self

    def next(self) -> Any:
        """The batch."""
        return self.the_batch
