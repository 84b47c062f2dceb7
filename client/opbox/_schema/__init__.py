"""The operators that the client knows: names, inputs, outputs and parameters, from a checked-in catalogue.

`operators.json` is written by `python -m opbox_service.schema`; a server's further operators are added by `extend`.
Symbols are composed and checked with this alone, without a server.
"""

from .operator import Operator, extend, find, get, operators

__all__ = ["Operator", "extend", "find", "get", "operators"]
