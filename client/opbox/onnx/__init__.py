"""`mx.onnx`: networks written as ONNX models and read from them; needs the package onnx: pip install 'opbox[onnx]'.

    mx.onnx.export_model(net, params, in_shapes=[(1, 3, 224, 224)], onnx_file_path="net.onnx")
    net, arg_params, aux_params = mx.onnx.import_model("net.onnx")

`exporters` has one entry for each operator of MXNet, `importers` one for each of ONNX; neither runs a network.
"""

from typing import TYPE_CHECKING

from .._lazy import attach

if TYPE_CHECKING:
    from .export import export_model, get_operator_support
    from .reading import get_model_metadata, import_model

__all__ = ["export_model", "get_model_metadata", "get_operator_support", "import_model"]

__getattr__, __dir__ = attach(
    __name__,
    __all__,
    modules={},
    homes={
        "export_model": "export",
        "get_model_metadata": "reading",
        "get_operator_support": "export",
        "import_model": "reading",
    },
)
