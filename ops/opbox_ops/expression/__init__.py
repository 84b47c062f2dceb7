"""Formulas: what an operator computes for every element, as data, and running them with NumPy or CuPy.

`language` reads formulas, `functions` lists what they may call, `derivative` differentiates them, `program` turns them
into steps, `evaluate` runs the steps on arrays, and `pointwise` makes operators of formulas. The operators themselves
live in `elementwise`, `broadcast`, `update` and `nn`.
"""
