"""States of optimizers as MXNet pickles them: the few opcodes that such a file is written with, and its reader.

A file holds numbers, strings, tuples, lists, dicts, arrays (class NDArray, its state the bytes of the array), and
with the optimizer that one and its scheduler. The reader lets in nothing else: other pickles can name any function.
The writer spells out the opcodes (Python's `pickletools` describes them), as Python's own asks for MXNet's classes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..base import value_text
from ..ndarray.files import of_record, record

__all__ = ["Described", "dumps", "loads"]

_ARRAY = "mxnet.ndarray.ndarray\nNDArray\n"
_MAX_DEPTH = 32
"""Maximum nesting of tuples, lists and dicts."""


@dataclass
class Described:
    """An object of a class that a file names: an optimizer, or a scheduler.

    Attributes:
        module, name: of its class.
        values: its attributes.
    """

    module: str
    name: str
    values: dict[str, Any] = field(default_factory=dict)


def dumps(value: Any) -> bytes:
    """Pickle a value of the kinds above, numpy arrays as MXNet's NDArrays.

    Raises:
        MXNetError: something else in it.
    """
    pieces = [b"\x80\x04"]
    _write(value, pieces)
    return b"".join([*pieces, b"."])


def _write(value: Any, pieces: list[bytes]) -> None:
    if value is None or value is True or value is False:
        pieces.append({None: b"N", True: b"\x88", False: b"\x89"}[value])
    elif isinstance(value, (int, np.integer)):
        raw = pickle.encode_long(int(value))
        if len(raw) > 255:
            raise MXNetError(f"optimizer states: expected an integer of at most 2040 bits, got one of {8 * len(raw)}")
        pieces.append(b"\x8a" + bytes([len(raw)]) + raw)
    elif isinstance(value, (float, np.floating)):
        pieces.append(b"G" + struct.pack(">d", value))
    elif isinstance(value, str):
        text = value.encode()
        pieces += [b"X", struct.pack("<I", len(text)), text]
    elif isinstance(value, np.ndarray):
        raw = record(value)
        pieces += [b"c", _ARRAY.encode(), b"N\x85R}"]
        _write("handle", pieces)
        pieces += [b"cbuiltins\nbytearray\n\x8e", struct.pack("<Q", len(raw)), raw, b"\x85Rsb"]
    elif isinstance(value, (tuple, list)):
        pieces.append(b"(")
        for entry in value:
            _write(entry, pieces)
        pieces.append(b"t" if isinstance(value, tuple) else b"l")
    elif isinstance(value, dict):
        pieces.append(b"}(")
        for key, entry in value.items():
            _write(key, pieces)
            _write(entry, pieces)
        pieces.append(b"u")
    elif isinstance(value, Described):
        pieces.append(f"c{value.module}\n{value.name}\n".encode() + b")\x81")
        _write(value.values, pieces)
        pieces.append(b"b")
    else:
        raise MXNetError(f"optimizer states: expected numbers, strings and arrays, got {value_text(value)}")


def loads(raw: bytes, classes: Collection[tuple[str, str]]) -> Any:
    """Read what MXNet, or `dumps`, has pickled.

    Args:
        raw: the file.
        classes: modules and names of the user's own classes of optimizers and schedulers, which it may name too.

    Returns:
        The value; arrays are numpy's, objects `Described`.

    Raises:
        MXNetError: it is no such file, or names something that no such file holds.
    """
    try:
        value = _StatesUnpickler(raw, frozenset(classes)).load()
    except MXNetError:
        raise
    except Exception as error:  # what a wrong opcode raises is anything
        raise MXNetError(
            "optimizer states: expected a file of save_optimizer_states, opbox's or MXNet's, got "
            f"{len(raw)} bytes that are none ({type(error).__name__}: {error})"
        ) from error
    return _plain(value, 0)


class _PickledArray:
    """Builds an NDArray from a pickle."""

    def __init__(self, handle: None = None) -> None:
        self.raw: bytes | None = None

    def __setstate__(self, state: Any) -> None:
        raw = state["handle"]
        self.raw = None if raw is None else bytes(_bytes(raw))


def _bytes(raw: Any = b"", encoding: str = "latin-1") -> bytes:
    """What `bytearray` makes of bytes, or of their text in a pickle of Python 2; a number would ask for memory."""
    if isinstance(raw, str) and encoding in ("latin-1", "latin1"):
        return raw.encode("latin-1")
    if not isinstance(raw, (bytes, bytearray)):
        raise MXNetError(f"optimizer states: expected an array's bytes, got {value_text(raw)}")
    return bytes(raw)


class _StatesUnpickler(pickle.Unpickler):
    """Finds stand-ins for the classes of states, and no others."""

    def __init__(self, raw: bytes, classes: frozenset[tuple[str, str]]) -> None:
        super().__init__(io.BytesIO(raw), encoding="latin-1")
        self._classes = classes

    def find_class(self, module_name: str, global_name: str) -> Any:
        if global_name == "NDArray" and module_name.startswith("mxnet.ndarray"):
            return _PickledArray
        if global_name == "bytearray" and module_name in ("builtins", "__builtin__"):
            return _bytes
        if global_name == "OrderedDict" and module_name == "collections":
            return OrderedDict
        mxnet = module_name.startswith(("mxnet.optimizer", "mxnet.lr_scheduler")) and global_name.isidentifier()
        if mxnet or (module_name, global_name) in self._classes:
            return _stand_in(module_name, global_name)
        raise MXNetError(
            "optimizer states: expected numbers, arrays, an optimizer and its scheduler, got a file that names "
            f"{module_name}.{global_name}: such a file could run any program, and is not read"
        )


class _StandIn:
    """An object of a class that is not here; a subclass has the class's names."""

    module = ""
    values: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        self.values = dict(state)


def _stand_in(module: str, name: str) -> type[_StandIn]:
    return type(name, (_StandIn,), {"module": module})


def _plain(value: Any, depth: int) -> Any:
    """The value without stand-ins."""
    if depth > _MAX_DEPTH:
        raise MXNetError(f"optimizer states: expected at most {_MAX_DEPTH} tuples and dicts in one another, got more")
    if isinstance(value, _PickledArray):
        return None if value.raw is None else of_record(value.raw, "optimizer states: an array")
    if isinstance(value, _StandIn):
        return Described(value.module, type(value).__name__, _plain(getattr(value, "values", {}), depth + 1))
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(entry, depth + 1) for entry in value)
    if isinstance(value, dict):
        return {key: _plain(entry, depth + 1) for key, entry in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise MXNetError(f"optimizer states: expected numbers, strings and arrays, got {type(value).__name__}")
