"""Error messages for a missing name of a module: the nearest names, or why opbox lacks what MXNet has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["absence_reason", "attribute_error", "module_getattr", "refuse_module"]

_SYMBOLIC = "opbox has MXNet's Symbol, NDArray and Module interfaces; networks are differentiated as symbols"
_DENSE = "opbox's arrays are dense"
_FILES = "mx.image.imdecode decodes images on this machine"
_INDEXING = "a[key] of an array does what it is part of"
_NO_SERVERS = "workers add up gradients with each other, without servers between them: mx.dist starts workers"
_ABSENT: tuple[tuple[str, str, str], ...] = (
    (r"", r"autograd|gluon|np|npx|numpy|numpy_extension|np_symbol", _SYMBOLIC),
    (r"executor_manager", r"DataParallelExecutor(Group|Manager)", "mx.mod.Module runs on several devices"),
    (r"(kvstore)?", r"kvstore_server|KVStoreServer", _NO_SERVERS),
    (r"", r"library|tvmop|th|torch|notebook|log", "opbox runs on a server of its own"),
    (r"", r"amp", "parameters say their type (mx.sym.Cast, dtype=), and multi_precision=True keeps float32 copies"),
    (r"(contrib)?", r"tensorrt", "mx.onnx.export_model writes networks as ONNX models, which TensorRT reads"),
    (r"contrib\.onnx", r"import_to_gluon", "mx.onnx.import_model makes a symbol, which mx.mod.Module runs"),
    (
        r"contrib",
        r"amp",
        "parameters say their type (mx.sym.Cast, dtype=), and multi_precision=True keeps float32 copies",
    ),
    (r"contrib", r"quantization", "opbox has no int8"),
    (r"contrib", r"autograd", _SYMBOLIC),
    (r"contrib", r"tensorboard", "mx.viz.LivePlot draws metrics, and a callback of yours may write them anywhere"),
    (r"contrib", r"io", "mx.io has the iterators"),
    (r"(ndarray|symbol)(\.op)?", r"cast_storage|CachedOp|np|npx|numpy|numpy_extension", _SYMBOLIC),
    (r"ndarray(\.op)?", r"imdecode", _FILES),
    (r"(ndarray|symbol)\.sparse", r"[A-Za-z]\w*", _DENSE),
    (r"(ndarray|symbol)\.contrib", r"dgl_\w+|edge_id|getnnz|SparseEmbedding", _DENSE),
    (r"(ndarray|symbol)\.contrib", r"quantized_\w+|quantize_\w+|requantize|calibrate_entropy", "opbox has no int8"),
    (r"io", r"Image\w+_v1", "mx.io.ImageRecordIter reads images from record files"),
    (r"test_utils", r"(create|rand)_sparse_\w+|shuffle_csr_column_indices", _DENSE),
    (r"test_utils", r"check_gluon_hybridize_consistency", _SYMBOLIC),
    (r"test_utils", r"download_model", "MXNet's site of models is gone; mx.model.load_checkpoint reads files of yours"),
    (r"contrib\.onnx", r"(import_model|get_model_metadata|import_to_gluon)_", "the names without _ are there"),
    (r"(ndarray|symbol)\.contrib", r"backward_\w+", "gradients follow from the operators"),
    (r"(ndarray|symbol)\.contrib", r"hawkesll", "opbox has no point processes"),
    (
        r"ndarray(\.ndarray)?",
        r"get_indexing_dispatch_code|get_oshape_of_gather_nd_op|indexing_key_expand_\w+",
        _INDEXING,
    ),
    (r"ndarray", r"to_dlpack_for_write", "arrays lie on the server; to_dlpack_for_read gives their values"),
    (r"operator", r"OperatorArguments|get_operator_arguments", "inspect.signature(mx.nd.dot) tells what one takes"),
    (r"io", r"MXDataIter", "iterators here are classes of their own"),
)
"""MXNet 1.9.1's modules and names that opbox lacks, as patterns with the alternative."""


def attribute_error(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that `module` lacks.

    Args:
        module: its full name, "opbox.symbol".
        name: what was asked for.
        names: what it has.
    """
    message = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):  # asked for by tools, again and again
        return AttributeError(message, name=name)
    place = module.partition(".")[2]
    reason = absence_reason(place, name)
    if reason is not None:
        return AttributeError(f"{message}, which MXNet has: {reason} (docs/differences.md)", name=name)
    from opbox_protocol.near_names import near_names  # for whoever has misspelt something

    near = near_names(name, sorted(known for known in names if not known.startswith("_")), cutoff=0.7)
    if near:
        message += f": did you mean {' or '.join(near)}?"
    elif place.startswith(("symbol", "ndarray")):
        message += "; mx.refresh_operators() learns the engine's own operators"
    return AttributeError(message, name=name)


def absence_reason(place: str, name: str) -> str | None:
    """Return why opbox lacks this name of MXNet; None if MXNet lacks it too."""
    return next(
        (why for where, names, why in _ABSENT if re.fullmatch(where, place) and re.fullmatch(names, name)), None
    )


def refuse_module(package: str, name: str) -> None:
    """Say why `package` has no module `name`, if MXNet has one.

    Raises:
        ModuleNotFoundError: without the module's name: `from opbox import gluon` would pass over one that has it.
    """
    reason = absence_reason(package.partition(".")[2], name)
    if reason is not None:
        message = f"no module named '{package}.{name}', which MXNet has: {reason} (docs/differences.md)"
        raise ModuleNotFoundError(message)


def module_getattr(module: str, names: Iterable[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose names are all there from the start."""

    def refuse(name: str) -> Any:
        raise attribute_error(module, name, names)

    return refuse
