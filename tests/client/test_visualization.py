"""Summaries and drawings of a symbol."""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import resvg_py
from examples.networks import inception, lenet, lstm, resnet, vgg
from nbclient import NotebookClient
from PIL import ImageFont

import opbox as mx
from opbox.drawing import boxes, folding, network, png, svg
from opbox_protocol.errors import MXNetError


def small() -> Any:
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def stacked(length: int = 12) -> Any:
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(mx.rnn.LSTMCell(8, prefix=f"l{layer}_"))
        stack.add(mx.rnn.DropoutCell(0.3, prefix=f"d{layer}_"))
    return stack.unroll(length, inputs=mx.sym.Variable("data"), merge_outputs=True)[0]


def head_in_the_middle() -> Any:
    x = mx.sym.Variable("data")
    heads = []
    for stage in range(2):
        for i in range(4):
            x = mx.sym.Convolution(x, num_filter=8, kernel=(3, 3), pad=(1, 1), name=f"s{stage}_conv{i}")
            x = mx.sym.Activation(x, act_type="relu", name=f"s{stage}_relu{i}")
            heads += [x] if (stage, i) == (0, 1) else []
        x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"s{stage}_pool")
    return mx.sym.Group([*heads, x])


def chain(length: int = 300) -> Any:
    x = mx.sym.Variable("x")
    for _ in range(length):
        x = x + 1
    return x


def repeats(net: Any) -> list[tuple[int, int]]:
    """The (operators, times) of what repeats, those inside others after them."""

    def listed(all_repeats: Any) -> list[tuple[int, int]]:
        return [pair for r in all_repeats for pair in [(r.period, r.times), *listed(r.inside)]]

    return listed(folding.find_repeats(network.network_of(net._nodes(), net._heads)))


def texts(svg: str) -> list[str]:
    """The texts of an SVG document, each as it is read."""
    root = ET.fromstring(svg)
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.usefixtures("embedded")
def test_a_summary_counts_shapes_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    mx.viz.print_summary(small(), shape={"data": (2, 5)})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["data(null)", "5", "0"] in rows
    assert ["fc1(FullyConnected)", "8", "48", "data"] in rows
    assert ["fc2(FullyConnected)", "3", "27", "fc1"] in rows
    assert ["Total", "params:", "75"] in rows
    mx.viz.print_summary(mx.sym.Variable("a") * mx.sym.Variable("b"), shape={"a": (2, 3), "b": (2, 3)})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if "(null)" in row[0]] == ["a(null)"]  # as MXNet: the first variable alone


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: lenet.build(mx), []),
        (lambda: vgg.build(mx), [(2, 3), (2, 3), (2, 3)]),
        (lambda: inception.build(mx), []),
        # Units after the first of each stage.
        (lambda: resnet.build(mx), [(10, 2), (10, 3), (10, 5), (10, 2)]),
        # The first step reads variables or constants where later ones read the step before.
        (lambda: lstm.build(mx), [(13, 49)]),
        (lambda: lstm.build_with_cell(mx), [(13, 49)]),
        # Layer by layer: each step of the second reads its own of the first.
        (stacked, [(13, 12), (2, 12), (12, 12), (1, 12)]),
        # A value of the middle that is used elsewhere must be seen.
        (head_in_the_middle, [(2, 4)]),
        (chain, [(1, 300)]),
    ],
    ids=[
        "lenet",
        "vgg",
        "inception",
        "resnet",
        "lstm by hand",
        "lstm cell",
        "stacked lstm",
        "head in the middle",
        "chain",
    ],
)
def test_what_repeats(build: Callable[[], Any], expected: list[tuple[int, int]]) -> None:
    assert repeats(build()) == expected


def test_a_fold_hides_no_difference() -> None:
    x = mx.sym.Variable("data")
    for i in range(8):
        x = mx.sym.Convolution(x, num_filter=8, kernel=(3, 3), dilate=(1 + (i == 5),) * 2, name=f"conv{i}")
    assert repeats(x) == [(1, 5)]
    net = lstm.build_with_cell(mx, length=6)
    top, edges, _ = boxes.boxes_of(network.network_of(net._nodes(), net._heads))
    (frame,) = [member for member in top.members if isinstance(member, boxes.BlockFrame)]
    assert (frame.count, frame.label, frame.prefix) == (6, "lstm_t0–5", "lstm_t0_")
    assert len({link.source for link, _ in frame.carried}) == 2  # output and state
    unfolded, every_edge, _ = boxes.boxes_of(network.network_of(net._nodes(), net._heads), fold=False)
    assert all(isinstance(member, boxes.Card) for member in unfolded.members)
    assert len(every_edge) > len(edges)


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: lenet.build(mx), {"data": (2, 1, 28, 28)}),
        (lambda: resnet.build(mx), {"data": (1, 3, 224, 224)}),
        (lambda: inception.build(mx), {"data": (1, 3, 299, 299)}),
        (lambda: lstm.build_with_cell(mx), lstm.shapes()),
        (stacked, {"data": (4, 12, 8)}),
    ],
    ids=["lenet", "resnet", "inception", "lstm", "stacked lstm"],
)
def test_boxes_stand_apart_and_edges_go_down(build: Callable[[], Any], shape: dict[str, tuple[int, ...]]) -> None:
    root = ET.fromstring(mx.viz.plot_network(build(), shape=shape).svg)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    rects = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        for rect in root.iter("{http://www.w3.org/2000/svg}rect")
        if rect.attrib["class"].startswith("o-box")
    ]
    assert len(rects) > 10
    for i, (x, y, w, h) in enumerate(rects):
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
        for ox, oy, ow, oh in rects[i + 1 :]:
            overlap = min(x + w, ox + ow) - max(x, ox) > 0.2 and min(y + h, oy + oh) - max(y, oy) > 0.2
            assert not overlap
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.attrib["class"] == "o-edge":
            ys = [float(y) for y in re.findall(r",(-?[\d.]+)", path.attrib["d"])]
            assert ys == sorted(ys)


@pytest.mark.usefixtures("embedded")
@pytest.mark.usefixtures("font")
def test_plot_network_takes_mxnets_arguments(tmp_path: Path) -> None:
    drawing = mx.viz.plot_network(
        small(),
        title="a small net",
        save_format="svg",
        shape={"data": (2, 5)},
        dtype={"data": "float32"},
        node_attrs={"shape": "oval", "fixedsize": "false", "fillcolor": "#ffeeaa", "fontcolor": "red;}x{"},
        hide_weights=False,
    )
    shown = texts(drawing.svg)
    assert {"FullyConnected 8", "fc1_weight", "2×8 float32", "8×5 float32"} <= set(shown)
    assert "#ffeeaa" in drawing.svg
    assert "red;}" not in drawing.svg  # nothing ends the rule that it stands in
    assert "<ellipse" in drawing.svg
    assert "fc1_weight" not in texts(mx.viz.plot_network(small()).svg)
    path = drawing.render(directory=tmp_path)
    assert path == str(tmp_path / "a small net.svg")
    assert Path(path).read_text() == drawing.svg
    assert Path(drawing.render(tmp_path / "x.pdf")).read_bytes().startswith(b"%PDF-1.4")
    assert drawing.render(tmp_path / "y", format="pdf").endswith("y.pdf")
    assert Path(drawing.render(tmp_path / "z.png")).read_bytes().startswith(b"\x89PNG")
    source = Path(drawing.save(tmp_path / "net.gv")).read_text()
    assert source.startswith('digraph "a small net" {')
    assert 'n0 -> n3 [label="2×5 float32"]' in source
    assert mx.viz.plot_network(small()).format == "pdf"


@pytest.fixture
def font(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A family that is the only one of the machine, as resvg sees it: its fonts are no matter of the tests."""
    letters = ImageFont.load_default(12)
    assert isinstance(letters, ImageFont.FreeTypeFont)
    file = tmp_path / "font.ttf"
    file.write_bytes(letters.font_bytes)
    original = resvg_py.svg_to_bytes

    def render(svg_string: str, **options: Any) -> bytes:
        svg_string = svg_string.replace("'DejaVu Sans'", str(letters.getname()[0]))
        return bytes(original(svg_string=svg_string, skip_system_fonts=True, font_files=[str(file)], **options))

    monkeypatch.setattr(resvg_py, "svg_to_bytes", render)
    return "'DejaVu Sans'"


def test_a_png_has_its_text_in_the_font_that_is_there(font: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing, rendered = mx.viz.plot_network(small()), list[str]()
    families = re.search(r"font-family:(.*?)\}", svg.svg(drawing._picture, png.FAMILIES))
    assert families is not None
    # All that many a machine has; resvg itself takes no other font for one that is missing.
    assert font in families[1]
    original = resvg_py.svg_to_bytes

    def render(svg_string: str, **options: Any) -> bytes:
        rendered.append(svg_string)
        return bytes(original(svg_string=svg_string, **options))

    with monkeypatch.context() as patch:
        patch.setattr(resvg_py, "svg_to_bytes", render)
        drawing.pipe("png")
    assert families[1] in rendered[-1]


def test_a_png_on_a_machine_without_fonts_has_no_text_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = functools.partial(resvg_py.svg_to_bytes, skip_system_fonts=True)
    monkeypatch.setattr(resvg_py, "svg_to_bytes", nothing)
    with pytest.warns(
        UserWarning, match="png: expected one of the fonts .*, got none, so the picture has no text: install"
    ):
        assert mx.viz.plot_network(small()).pipe("png").startswith(b"\x89PNG")


def test_numbers_of_operators_are_said_right() -> None:
    one = mx.sym.Activation(mx.sym.Variable("data"), act_type="relu", name="a")
    assert 'aria-label="plot: a network of 1 operator"' in mx.viz.plot_network(one).svg
    assert repr(mx.viz.plot_network(one)) == "<Drawing 'plot' of 1 operator>"
    assert 'aria-label="plot: a network of 3 operators"' in mx.viz.plot_network(small()).svg


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"symbol": 3}, TypeError, "symbol: expected a Symbol, got int"),
        ({"shape": {"dta": (2, 5)}}, MXNetError, "'dta' not found: expected one of data"),
        ({"save_format": "bmp"}, ValueError, "format: expected one of svg, pdf, png, dot, gv, got 'bmp'"),
        ({"node_attrs": {"fontsize": "big"}}, ValueError, "node_attrs: fontsize: expected a number from 0 to 1000"),
    ],
)
def test_what_plot_network_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        mx.viz.plot_network(**{"symbol": small(), **arguments})


@pytest.mark.filterwarnings("ignore:infer_shape")
@pytest.mark.usefixtures("embedded")
def test_shapes_that_determine_too_little() -> None:
    with pytest.raises(ValueError, match="expected shapes that determine all others"):
        mx.viz.plot_network(small(), shape={"softmax_label": (2,)})


def test_a_drawing_that_is_too_large() -> None:
    x = mx.sym.Variable("x")
    for i in range(500):
        x = mx.sym.FullyConnected(x, num_hidden=1 + i, name=f"f{i}")
    shown = x._repr_mimebundle_()
    assert list(shown) == ["text/plain"]
    assert "expected at most 400 boxes, got 501: draw a part of the network" in shown["text/plain"]
    assert len(texts(mx.viz.plot_network(x).svg)) > 500
    with pytest.raises(MXNetError, match="expected a network with something to show"):
        mx.viz.plot_network(mx.sym.Variable("fc_weight")).render("nowhere")


@pytest.mark.usefixtures("engine")
def test_a_symbol_shows_the_shapes_that_it_knows() -> None:
    net = mx.sym.FullyConnected(mx.sym.Variable("data", shape=(2, 5)), num_hidden=8, name="fc1")
    assert {"2×5", "2×8"} <= set(texts(net._repr_mimebundle_()["image/svg+xml"]))


def test_a_symbol_is_drawn_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_URL", "http://127.0.0.1:9")
    mx.disconnect()
    net = mx.sym.FullyConnected(mx.sym.Variable("data", shape=(2, 5)), num_hidden=8, name="a<b")
    shown = net._repr_mimebundle_()
    assert "a<b" in texts(shown["image/svg+xml"])
    assert shown["text/plain"] == "<Symbol a<b>"
    mx.disconnect()


def test_a_notebook_shows_drawings() -> None:
    lines = [
        "import opbox as mx\nmx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=8, name='fc1')",
        "mx.viz.plot_network(mx.sym.relu(mx.sym.Variable('data')))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line) for line in lines])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    for cell, word in zip(notebook.cells, ("FullyConnected 8", "relu"), strict=True):
        (output,) = cell.outputs
        assert word in texts(output.data["image/svg+xml"])
