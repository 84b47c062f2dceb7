"""Converters of ONNX's operators to MXNet's, one file a family; the files declare them with `imports`."""

from . import elementwise, indexing, nn, pooling, recurrent, reduce, shape

__all__ = ["elementwise", "indexing", "nn", "pooling", "recurrent", "reduce", "shape"]
