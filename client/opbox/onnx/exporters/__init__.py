"""Converters of MXNet's operators to ONNX, one file a family; the files declare them with `exports`."""

from . import elementwise, matrices, nn, pooling, recurrent, reduce, shape

__all__ = ["elementwise", "matrices", "nn", "pooling", "recurrent", "reduce", "shape"]
