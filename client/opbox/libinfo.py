"""MXNet's `mx.libinfo`: where its library is. There is none here; programs that look for it get the error that MXNet
raises where it is missing.
"""

from __future__ import annotations

from typing import NoReturn

from opbox_protocol.mxnet import VERSION

from .absent import module_getattr

__all__ = ["find_conf_path", "find_include_path", "find_lib_path"]

__version__ = f"{VERSION // 10000}.{VERSION // 100 % 100}.{VERSION % 100}"
"""The version of MXNet that opbox follows."""


def find_lib_path(prefix: str = "libmxnet") -> NoReturn:
    """Raise RuntimeError: there is no library of MXNet's."""
    raise RuntimeError(f"find_lib_path: opbox has no {prefix} library: it computes on an engine in Python and C")


def find_include_path() -> NoReturn:
    """Raise RuntimeError: there are no headers of MXNet's."""
    raise RuntimeError("find_include_path: opbox has no C++ headers: write operators as mx.operator.CustomOp or mx.rtc")


def find_conf_path(prefix: str = "tvmop") -> NoReturn:
    """Raise RuntimeError: there are no configuration files of MXNet's."""
    raise RuntimeError(f"find_conf_path: opbox has no {prefix} configuration: its engine needs none")


__getattr__ = module_getattr(__name__, __all__)
