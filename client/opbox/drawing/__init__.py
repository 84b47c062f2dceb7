"""Drawings of networks, laid out here in Python: no program and no package beside this one is needed.

`network` has what is drawn of a graph, `labels` the words on it, `folding` finds blocks that repeat, `layout` places
everything (`ranks`, `crossings` and `columns` are its steps), `picture` turns places into shapes, `svg` and `pdf` write
those, and `drawing` is what users hold. Nothing here knows sessions or arrays: shapes and types come from who asks.
"""

from .drawing import Drawing, draw

__all__ = ["Drawing", "draw"]
