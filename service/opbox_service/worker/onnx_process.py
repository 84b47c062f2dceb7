"""The program that converts an ONNX file into a graph with parameters:

    python -P -m opbox_service.worker.onnx_process FILE FOLDER LIMITS

It writes `net-symbol.json`, `net-0000.params` and `tensors.json` (names, shapes and types of the inputs, names of the
outputs) into the folder. An error is one sentence on its standard output, with exit status 1. The importer computes
constants on an engine, which is this process's own. As the file may be anybody's, the process first confines itself
like one that runs a session's code; `OnnxLimits` are its limits, in JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from opbox_protocol.errors import MXNetError

from ..models.onnx_limits import OnnxLimits
from .confine import Bounds, at_hand, confine, own_packages, reachable
from .orphans import User

__all__ = ["convert", "enter_walls"]


def enter_walls(file: Path, folder: Path, limits: OnnxLimits) -> tuple[Path, Path]:
    """Confine this process; return names by which it reaches the file and the folder from then on.

    Only Linux has these walls; elsewhere a conversion is bounded by its time alone.

    Raises:
        NotReadyError: no user id is free.
        OSError: it cannot be confined.
    """
    if sys.platform != "linux":
        return file, folder
    user, kernels = 0, limits.kernels
    if limits.first_user and os.geteuid() == 0:
        claim = User(limits.first_user)  # which ends with this process
        user = claim.id
        file = Path(reachable(at_hand(str(file), str(folder))))
        try:
            os.chown(folder, user, user)
        except PermissionError:
            raise PermissionError(
                f"the conversion's folder cannot be given to user id {user}: expected the capability CHOWN, as root "
                "has outside of containers: grant it with SETUID and SETGID, or set OPBOX_CODE_USER=0"
            ) from None
        folder = Path(reachable(str(folder)))
        kernels = None if kernels is None else reachable(kernels)
    confine(
        Bounds(
            user=user,
            folder=str(folder),
            read=(*map(str, own_packages()), str(file.parent), *([] if kernels is None else [kernels])),
            write=(),
            memory=limits.memory,
            open_files=limits.open_files,
            file_bytes=limits.file_bytes,
            tasks=limits.tasks,
            gpu=False,
            network=False,
            seccomp=limits.seccomp,
        )
    )
    from opbox_ops.cpu.runtime import c_compiler  # NumPy's threads are to be confined as well

    c_compiler.read_only(None if kernels is None else Path(kernels), limits.maker)
    return file, folder


def convert(file: Path, folder: Path) -> None:
    """Write the network of an ONNX file into a folder.

    Raises:
        MXNetError: the file is no ONNX model, or has what no converter knows.
        ImportError: the package onnx is not installed.
    """
    import opbox as mx
    from opbox_protocol.datatypes import datatype_of

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
    file, folder = map(Path, sys.argv[1:3])
    limits = OnnxLimits(**json.loads(sys.argv[3]))
    try:
        file, folder = enter_walls(file, folder, limits)
        convert(file, folder)
    except MemoryError:
        print(f"expected a model that is converted in {limits.memory} bytes of memory, got one that takes more")
        return 1
    except (MXNetError, ImportError, OSError) as error:
        print(" ".join(str(error).replace(str(file), file.name).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
