"""Data iterators: batches of host arrays for training and scoring, as `mx.io`. Nothing here talks to a server."""

from ..absent import module_getattr
from .csv import CSVIter
from .desc import DataBatch, DataDesc, DataIter
from .image_det_record_iter import ImageDetRecordIter
from .image_record_iter import ImageRecordInt8Iter, ImageRecordIter, ImageRecordUInt8Iter
from .libsvm import LibSVMIter
from .mnist import MNISTIter, read_idx
from .ndarray_iter import NDArrayIter, _init_data
from .wrap import PrefetchingIter, ResizeIter

__all__ = [
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "ImageDetRecordIter",
    "ImageRecordInt8Iter",
    "ImageRecordIter",
    "ImageRecordUInt8Iter",
    "LibSVMIter",
    "MNISTIter",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
    "_init_data",
    "read_idx",
]

__getattr__ = module_getattr(__name__, __all__)
