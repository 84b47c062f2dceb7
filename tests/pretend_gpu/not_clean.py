"""What a plan may still do to the GPU while it runs, by family and operator: both lists may only shrink."""

__all__ = ["ALLOCATE", "REFUSED"]

ALLOCATE = {"contrib": "_contrib_boolean_mask"}
"""Operators that ask for memory in the first row of their operator, by family."""

REFUSED = {"contrib": "_contrib_boolean_mask"}
"""Operators that synchronise, copy from or to the host, or call a library that refuses stream capture."""
