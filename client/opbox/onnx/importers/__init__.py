"""Converters of ONNX's operators to MXNet's, one file a family; the files declare them with `imports`."""

from . import elementwise, nn, recurrent, reduce, shape

__all__ = ["elementwise", "nn", "recurrent", "reduce", "shape"]
