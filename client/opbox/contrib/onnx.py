"""`mx.contrib.onnx`, as MXNet called `mx.onnx` before 1.9."""

from ..absent import module_getattr
from ..onnx.export import export_model
from ..onnx.reading import get_model_metadata, import_model

__all__ = ["export_model", "get_model_metadata", "import_model"]

__getattr__ = module_getattr(__name__, __all__)
