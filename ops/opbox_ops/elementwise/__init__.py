"""Operators that work on elements that stand in the same place: one shape in, the same shape out.

The families are tables of formulas; `opbox_ops.expression` says what a formula may hold and runs it. Operators that
stretch an input to another's shape live in `broadcast`.
"""
