"""Programs as MXNet's users wrote them, run by MXNet 1.9.1 (recorded) and by opbox after one changed import.

A program in `programs/` imports mxnet, makes its own data and prints one line of JSON as its last: names, shapes,
numbers. Its own docstring says in whose manner it is written. `python -m tests.compat.record` records MXNet's answers
in `recorded/`; it runs with MXNet's Python.
"""
