"""Initializers that take values or rules from elsewhere: a file of parameters, patterns of names."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from ..ndarray import NDArray, load

__all__ = ["Load", "Mixed"]


class Load:
    """Take parameters from a file or a dict; ask `default_init` for those it lacks.

    Args:
        param: a `.params` file's path, or arrays by name ("arg:" and "aux:" prefixes are dropped).
        default_init: called for names that are not there; None makes them an error.
        verbose: log each parameter.

    Raises (on use):
        AssertionError: a shape that does not fit, or a missing name without `default_init`.
    """

    def __init__(self, param: Any, default_init: Any = None, verbose: bool = False) -> None:
        arrays = load(param) if isinstance(param, str) else param
        if not isinstance(arrays, dict):
            raise AssertionError(f"param: expected a file of named arrays or a dict, got {type(arrays).__name__}")
        self.param = {name.removeprefix("arg:").removeprefix("aux:"): arr for name, arr in arrays.items()}
        self.default_init = default_init
        self.verbose = verbose

    def __call__(self, name: str, arr: NDArray) -> None:
        if name in self.param:
            source = self.param[name]
            if arr.shape != source.shape:
                raise AssertionError(
                    f"Load: parameter {str(name)!r}: expected shape {arr.shape}, got {source.shape} in the file"
                )
            arr[:] = source
            if self.verbose:
                logging.info("%s read from the file", name)
            return
        if self.default_init is None:
            raise AssertionError(
                f"Load: parameter {str(name)!r} is not in the file: give a default_init for those that are missing"
            )
        self.default_init(name, arr)
        if self.verbose:
            logging.info("%s filled by default_init", name)


class Mixed:
    """The initializer of the first pattern (a regular expression, matched at the start) that a name matches.

    Raises (on use):
        ValueError: no pattern matches.
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]) -> None:
        if len(patterns) != len(initializers):
            raise AssertionError(f"expected as many initializers as patterns, got {len(initializers)}, {len(patterns)}")
        self.map = [(re.compile(pattern), one) for pattern, one in zip(patterns, initializers, strict=True)]

    def __call__(self, name: str, arr: NDArray) -> None:
        for pattern, one in self.map:
            if pattern.match(name):
                one(name, arr)
                return
        raise ValueError(
            f"Mixed: parameter {str(name)!r} is matched by no pattern: "
            'end the list with ".*" and an initializer for all others'
        )
