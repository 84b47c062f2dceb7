"""Drawing: a network's picture, which a notebook shows and `render` writes to a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import LimitError, MXNetError

from ..file_errors import file_errors
from .boxes import BlockFrame, boxes_of
from .dot import dot
from .layout import lay_out
from .look import BoxLook
from .network import DrawnNetwork, network_of
from .pdf import pdf
from .picture import Picture, paint
from .png import png
from .svg import svg

if TYPE_CHECKING:
    from ..symbol.node import Entry, Node

__all__ = ["FORMATS", "Drawing", "draw"]

FORMATS = ("svg", "pdf", "png", "dot", "gv")
LARGEST = 1500
"""Maximum number of boxes of a drawing."""


class Drawing:
    """A network's picture. A notebook shows it; `render` writes it to a file.

    Attributes:
        name: the title, and the name of the file that `render` writes when it is called without one.
        format: of that file: "svg", "pdf", "png" (which needs `opbox[viz]`) or "dot".

    Example:
        >>> drawing = mx.viz.plot_network(net, shape={"data": (1, 3, 224, 224)})
        >>> drawing.render("network.svg")
        'network.svg'
    """

    def __init__(
        self,
        network: DrawnNetwork,
        title: str = "plot",
        format: str = "pdf",
        node_attrs: Mapping[str, str] | None = None,
        *,
        fold: bool = True,
        largest: int = LARGEST,
    ) -> None:
        self.name = str(title)
        self.format = _known(format)
        self.node_attrs = dict(node_attrs or {})
        self._network = network
        self._fold = fold
        self._largest = largest
        self._look = BoxLook.of(node_attrs)

    @cached_property
    def _picture(self) -> Picture:
        top, edges, alike = boxes_of(self._network, fold=self._fold)
        if not top.members:
            raise MXNetError("drawing: expected a network with something to show, got variables that are hidden")
        count = _count(top)
        if count > self._largest:
            raise LimitError(
                f"drawing: expected at most {self._largest} boxes, got {count}: draw a part of the network"
            )
        return paint(self._network, lay_out(self._network, top, edges, self._look), self._look, self.name, alike)

    @property
    def svg(self) -> str:
        """The picture as SVG, whose colours follow the reader's choice of light or dark."""
        return svg(self._picture)

    @property
    def source(self) -> str:
        """The whole network in graphviz's language, unfolded, for layout by graphviz."""
        return dot(self._network, self.name, self.node_attrs)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": repr(self)}

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        operators = sum(v.op is not None for v in self._network.vertices)
        return f"<Drawing {self.name!r} of {operators} operator{'' if operators == 1 else 's'}>"

    def pipe(self, format: str | None = None) -> bytes:
        """The picture as the content of a file of this format.

        Raises:
            MXNetError: the format is "png", and the package that makes it is not installed.
            ValueError: there is no such format.
        """
        kind = _known(format or self.format)
        if kind == "svg":
            return self.svg.encode()
        if kind == "pdf":
            return pdf(self._picture)
        return png(self._picture) if kind == "png" else self.source.encode()

    def render(
        self,
        filename: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        view: bool = False,
        cleanup: bool = False,
        format: str | None = None,
        **ignored: Any,
    ) -> str:
        """Write the picture to a file.

        Args:
            filename: its name, with or without the format's suffix; the title by default.
            directory: where it goes, made if it is not there.
            view: show it with the program that this machine has for such files.
            cleanup, ignored: what graphviz's own `render` takes further; there is nothing to clean up.
            format: "svg", "pdf", "png" or "dot"; by default that of `filename`'s suffix, and then that of the drawing.

        Returns:
            The file's path.

        Raises:
            MXNetError: "png", and the package that makes it is not installed.
            ValueError: there is no such format.
        """
        path = Path(self.name if filename is None else filename)
        suffix = path.suffix[1:].lower()
        kind = _known(format or (suffix if suffix in FORMATS else self.format))
        if suffix != kind:
            path = path.with_name(f"{path.name}.{kind}")
        if directory is not None:
            path = Path(directory) / path
        content = self.pipe(kind)
        with file_errors(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if view:
            _view(path)
        return str(path)

    def save(self, filename: str | os.PathLike[str] | None = None, directory: Any = None) -> str:
        """Write the network in graphviz's language, as graphviz's own `save` does; returns the file's path."""
        return self.render(f"{self.name}.gv" if filename is None else filename, directory, format="gv")

    def view(self, filename: str | os.PathLike[str] | None = None, **options: Any) -> str:
        """Write the picture to a file and show it; as `render`."""
        return self.render(filename, view=True, **options)


def draw(
    nodes: Sequence[Node],
    heads: Iterable[Entry],
    values: Mapping[str, str] | None = None,
    *,
    title: str = "plot",
    format: str = "svg",
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
    fold: bool = True,
    largest: int = LARGEST,
) -> Drawing:
    """The drawing of a graph.

    Args:
        nodes: in their order.
        heads: the outputs.
        values: what is written at outputs (shape, type), by their names.
        title, format, node_attrs, fold, largest: as of `Drawing`.
        hide_weights: leave learnt variables out.
    """
    network = network_of(nodes, heads, values, hide_weights=hide_weights)
    return Drawing(network, title, format, node_attrs, fold=fold, largest=largest)


def _known(format: str) -> str:
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    return format


def _count(frame: BlockFrame) -> int:
    return sum(_count(member) if isinstance(member, BlockFrame) else 1 for member in frame.members)


def _view(path: Path) -> None:
    import webbrowser

    webbrowser.open(path.resolve().as_uri())
