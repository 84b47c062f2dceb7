"""Graphs: the immutable IR, MXNet's symbol JSON, and passes over them. No arrays here: see `executor`."""

from .ir import Graph

__all__ = ["Graph"]
