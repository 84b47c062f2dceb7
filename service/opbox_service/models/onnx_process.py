"""The process that converts an ONNX file into a graph with parameters:

    python -m opbox_service.models.onnx_process FILE FOLDER

It writes `net-symbol.json`, `net-0000.params` and `tensors.json` (names, shapes and types of the inputs, names of the
outputs) into the folder. An error is one sentence on its standard output, with exit status 1. The importer computes
constants on an engine, which is this process's own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import opbox as mx
from opbox_protocol.datatypes import datatype_of
from opbox_protocol.errors import MXNetError

__all__ = ["convert"]


def convert(file: Path, folder: Path) -> None:
    """Write the network of an ONNX file into a folder.

    Raises:
        MXNetError: the file is no ONNX model, or has what no converter knows.
        ImportError: the package onnx is not installed.
    """
    net, args, aux = mx.onnx.import_model(file)
    metadata = mx.onnx.get_model_metadata(file)
    from onnx import helper

    net.save(str(folder / "net-symbol.json"))
    params = {f"{kind}:{key}": array for kind, arrays in (("arg", args), ("aux", aux)) for key, array in arrays.items()}
    mx.nd.save(str(folder / "net-0000.params"), params)
    inputs = {
        key: {
            "shape": [size or -1 for size in shape],
            "datatype": datatype_of(helper.tensor_dtype_to_np_dtype(elem_type)),
        }
        for key, shape, elem_type in metadata["input_tensor_data"]
    }
    outputs = [key for key, _ in metadata["output_tensor_data"]]
    (folder / "tensors.json").write_text(json.dumps({"inputs": inputs, "outputs": outputs}), encoding="utf-8")


def main() -> int:
    for name in [name for name in os.environ if name.startswith("OPBOX_")]:
        del os.environ[name]  # which are the server's
    file, folder = sys.argv[1:]
    try:
        convert(Path(file), Path(folder))
    except (MXNetError, ImportError, OSError) as error:
        print(" ".join(str(error).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
