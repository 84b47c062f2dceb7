"""Data sets in the places where MXNet's functions put them; nothing is downloaded.

A function finds its files, or unpacks an archive that lies beside them; otherwise `download` says what to fetch.
"""

from __future__ import annotations

import bz2
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opbox_protocol.errors import MXNetError

from ..file_errors import file_errors
from .downloading import download

__all__ = [
    "get_bz2_data",
    "get_cifar10",
    "get_im2rec_path",
    "get_mnist_iterator",
    "get_mnist_pkl",
    "get_mnist_ubyte",
    "get_zip_data",
]

_DATA = "data"
_MNIST = [
    f"{name}-ubyte" for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
]
_CIFAR10 = [f"cifar/{name}" for name in ("train.rec", "test.rec", "train.lst", "test.lst")]


def get_mnist_ubyte() -> None:
    """Have MNIST's four idx files in the folder `data`, from `data/mnist.zip` where they are not there.

    Raises:
        MXNetError: neither they nor the archive is there.
    """
    _unpacked("http://data.mxnet.io/mxnet/data/mnist.zip", _MNIST)


def get_cifar10() -> None:
    """Have CIFAR-10's record files in the folder `data/cifar`, from `data/cifar10.zip` where they are not there.

    Raises:
        MXNetError: neither they nor the archive is there.
    """
    _unpacked("http://data.mxnet.io/mxnet/data/cifar10.zip", _CIFAR10)


def get_mnist_pkl() -> None:
    """Check that MNIST as one pickled file, `mnist.pkl.gz`, is in the folder `data`.

    Raises:
        MXNetError: it is not there.
    """
    download("http://deeplearning.net/data/mnist/mnist.pkl.gz", dirname=_DATA)


def get_mnist_iterator(
    batch_size: int, input_shape: Sequence[int], num_parts: int = 1, part_index: int = 0
) -> tuple[Any, Any]:
    """Return iterators over MNIST's training and test digits in the folder `data`.

    Args:
        batch_size: images of a batch.
        input_shape: (1, 28, 28), or (784,) for flat images.
        num_parts, part_index: read only this part.

    Raises:
        MXNetError: MNIST's files are not there.

    Example:
        >>> train, test = mx.test_utils.get_mnist_iterator(100, (784,))
    """
    from ..io import MNISTIter

    get_mnist_ubyte()
    iterators = [
        MNISTIter(
            image=os.path.join(_DATA, images),
            label=os.path.join(_DATA, labels),
            input_shape=tuple(input_shape),
            batch_size=batch_size,
            shuffle=images.startswith("train"),
            flat=len(input_shape) != 3,
            num_parts=num_parts,
            part_index=part_index,
        )
        for images, labels in (_MNIST[:2], _MNIST[2:])
    ]
    return iterators[0], iterators[1]


def get_zip_data(data_dir: str, url: str, data_origin_name: str) -> None:
    """Unpack a zip archive that lies in a folder, or that `url` names on this machine.

    Args:
        data_dir: the folder, where the archive's files go.
        url: the archive's address; its last part is the file's name.
        data_origin_name: the archive's name in the folder.

    Raises:
        MXNetError: the archive is not there, or is none.
    """
    path = os.path.join(data_dir, data_origin_name)
    if not os.path.exists(path):
        path = download(url, dirname=data_dir, overwrite=False)
    _unzip(path, data_dir)


def get_bz2_data(data_dir: str, data_name: str, url: str, data_origin_name: str) -> None:
    """Unpack a bz2 file that lies in a folder, or that `url` names on this machine.

    Args:
        data_dir: the folder.
        data_name: the name of the unpacked file; where it is there, nothing is done.
        url: the packed file's address.
        data_origin_name: the packed file's name in the folder, which is removed when it is unpacked.

    Raises:
        MXNetError: the packed file is not there, or is none.
    """
    path = Path(data_dir, data_name)
    if path.exists():
        return
    packed = Path(download(url, fname=os.path.join(data_dir, data_origin_name), overwrite=False))
    part = path.with_name(f"{path.name}.part")
    with file_errors(packed, "read"), bz2.open(packed, "rb") as source, part.open("wb") as target:
        shutil.copyfileobj(source, target)
    part.replace(path)
    packed.unlink()


def get_im2rec_path(home_env: str = "MXNET_HOME") -> str:
    """Return the path of MXNet's tools/im2rec.py below the folder that an environment variable names.

    Raises:
        OSError: the variable is not set, or the folder lacks the tool: opbox has none of its own.
    """
    home = os.environ.get(home_env)
    places = [] if home is None else [Path(home, "tools", "im2rec.py"), Path(home, "..", "..", "tools", "im2rec.py")]
    for path in places:
        if path.is_file():
            return str(path)
    raise OSError(
        f"get_im2rec_path: expected MXNet's folder with tools/im2rec.py in {home_env}, got {home!r}; "
        "mx.recordio writes record files too"
    )


def _unpacked(url: str, names: Sequence[str]) -> None:
    if not all(Path(_DATA, name).exists() for name in names):
        _unzip(download(url, dirname=_DATA), _DATA)


def _unzip(path: str, folder: str) -> None:
    try:
        with file_errors(path, "read"), zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    except zipfile.BadZipFile as error:
        raise MXNetError(f"{path}: expected a zip archive, got another file: fetch it again") from error
