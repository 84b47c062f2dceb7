"""Exchanges functions that CuPy's compiled modules call in each other.

Cython modules find each other's functions by capsules (`__pyx_capi__`) whose names are C signatures. A function put in
such a place must be C, and to raise it must leave Python's error set and return its error value, which ctypes callbacks
cannot do. So a small library is compiled: one C function for each, which calls a Python function.
"""

from __future__ import annotations

import atexit
import ctypes
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .compiler import shared_library
from .device import RELAXED

__all__ = ["exchange"]

_api: Any = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_HEAD = """
#include <stdint.h>
#include <stddef.h>
extern "C" {
struct PyObject;
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
PyObject *Py_BuildValue(const char *, ...);
long long PyLong_AsLongLong(PyObject *);
double PyFloat_AsDouble(PyObject *);
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
#define EXPORT __attribute__((visibility("default")))
static PyObject *targets[256];
static bool closed;
EXPORT void exchange_set(int place, PyObject *function) { Py_IncRef(function); targets[place] = function; }
EXPORT void exchange_close() { closed = true; }
"""

_RETURNS = {
    "PyObject *": ("return r;", "return nullptr;", 'return Py_BuildValue("");'),
    "float": ("float v = float(PyFloat_AsDouble(r)); Py_DecRef(r); return v;", "return -1;", "return 0;"),
    "int": ("int v = int(PyLong_AsLongLong(r)); Py_DecRef(r); return v;", "return -1;", "return 0;"),
    "intptr_t": ("intptr_t v = intptr_t(PyLong_AsLongLong(r)); Py_DecRef(r); return v;", "return 0;", "return 0;"),
}
"""The statements that return a value, an error, and nothing when the interpreter ends, by the C type."""
_FORMATS = {"int": "i", "CUdevice": "i", "unsigned int": "I", "size_t": "K", "intptr_t": "L", "PyObject *": "O"}
_C_TYPES = {"K": "unsigned long long", "L": "long long"}

_alive: list[Any] = []


def exchange(module: ModuleType, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Put Python functions in the place of a module's C functions, and of its Python functions of these names.

    Modules that were imported before keep what they have.

    Args:
        module: a Cython module that nobody has imported functions from yet.
        functions: what stands for them, by name; of optional arguments they take the mode of capture alone.
    """
    capsules = module.__pyx_capi__
    names = [name for name in functions if name in capsules]
    signatures = {name: _api.PyCapsule_GetName(capsules[name]) for name in names}
    text = _HEAD + "".join(_entry(place, signatures[name].decode()) for place, name in enumerate(names)) + "}\n"
    library = ctypes.PyDLL(str(shared_library(text, ("-O1", "-fvisibility=hidden"))))
    library.exchange_set.argtypes = [ctypes.c_int, ctypes.py_object]
    for place, name in enumerate(names):
        library.exchange_set(place, functions[name])
        address = ctypes.cast(getattr(library, f"exchange_{place}"), ctypes.c_void_p)
        capsule_name = ctypes.create_string_buffer(signatures[name])
        _alive.append(capsule_name)
        capsules[name] = _api.PyCapsule_New(address, ctypes.cast(capsule_name, ctypes.c_char_p), None)
    for name, function in functions.items():
        setattr(module, name, function)
    _alive.append(library)
    # CuPy frees memory while the interpreter ends: from here on nothing is called that may be gone.
    atexit.register(library.exchange_close)


def _entry(place: int, signature: str) -> str:
    match = re.fullmatch(r"(.*?)\s*\((.*)\)", signature)
    assert match is not None, signature
    returned, passed = match[1].strip(), [part.strip() for part in match[2].split(",")]
    declared, forms, values = [], "", ""
    for k, part in enumerate(passed):
        if part == "void":
            continue
        if "__pyx_skip_dispatch" in part:
            declared.append(f"int a{k}")
        elif "__pyx_opt_args" in part:
            declared.append(f"void *a{k}")
            if "streamBeginCapture" in part:  # a count of the optional arguments, and the mode; without it, relaxed
                forms += "i"
                values += f", a{k} && *(int *)a{k} ? ((int *)a{k})[1] : {RELAXED}"
        else:
            form = _FORMATS[part]
            declared.append(f"{part.replace('CUdevice', 'int')} a{k}")
            forms += form
            values += f", ({_C_TYPES[form]})a{k}" if form in _C_TYPES else f", a{k}"
    value, error, nothing = _RETURNS[returned]
    return (
        f"EXPORT {returned} exchange_{place}({', '.join(declared)}) {{\n"
        f"  if (closed) {nothing}\n"
        f'  PyObject *r = PyObject_CallFunction(targets[{place}], "({forms})"{values});\n'
        f"  if (!r) {error}\n  {value}\n}}\n"
    )
