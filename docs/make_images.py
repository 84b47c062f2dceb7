"""Draw the networks and the terminal whose pictures stand in the documents.

python docs/make_images.py            writes docs/images/*.svg
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from ptyprocess import PtyProcess
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from examples.networks import lenet, lstm, resnet  # noqa: E402
from tests.contract.live import TOKENS, Live  # noqa: E402

import opbox as mx  # noqa: E402

NETWORKS = {
    "lenet": (lenet.build(mx), lenet.shapes(batch=1)),
    "resnet50": (resnet.build(mx), {"data": (1, 3, 224, 224)}),
    "lstm": (lstm.build_with_cell(mx), lstm.shapes()),
}

IMAGES = ROOT / "docs" / "images"


COLUMNS = 104
NO_MOTION = re.compile(r"\x1b\[(\?25[hl]|[0-9]*[AKJ])")
"""What moves the cursor or clears, and has no place in a picture."""


def at_terminal(
    command: Sequence[str], folder: str, enough: Callable[[str], bool] = lambda text: False, **env: str
) -> str:
    """What a program writes to a terminal until it ends, or until it is enough and Ctrl-C ends it."""
    environment = os.environ | {"TERM": "xterm-256color"} | env
    process = PtyProcess.spawn(list(command), cwd=folder, env=environment, dimensions=(60, COLUMNS))
    text = b""
    while not enough(text.decode(errors="ignore")):
        try:
            text += process.read()
        except EOFError:
            break
    if process.isalive():
        process.kill(signal.SIGINT)
    process.wait()
    return text.decode(errors="ignore")


def picture(name: str, screens: Sequence[tuple[str, str]]) -> Path:
    """Commands, and what each has left on the screen, as docs/images/NAME.svg."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command, text in screens:
        console.print(Text.assemble(("$ ", "green"), command))
        lines = NO_MOTION.sub("", text.replace("\r\n", "\n")).split("\n")
        console.print(Text.from_ansi("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)))
    path = IMAGES / f"{name}.svg"
    drawn = console.export_svg(title="opbox", font_aspect_ratio=0.61)
    # rich names a font on another host: readers' own will do.
    path.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")
    return path


def opbox(words: Sequence[str], folder: str, **env: str) -> tuple[str, str]:
    """A command of `opbox`, and what it prints."""
    return " ".join(["opbox", *words]), at_terminal([sys.executable, "-m", "opbox.cli", *words], folder, **env)


TRAINING = """
import logging
import numpy as np
import opbox as mx
from networks import lenet

logging.basicConfig(level=logging.INFO, format="%(message)s")
np.random.seed(0)
x = np.random.rand(6000, 1, 28, 28).astype("float32")
y = (x.mean(axis=(1, 2, 3)) * 10).astype("int").astype("float32")
mod = mx.mod.Module(lenet.build(mx))
mod.fit(mx.io.NDArrayIter(x, y, 50), num_epoch=3, initializer=mx.init.Xavier())
"""


def training_bar(folder: str) -> Path:
    """The bar of `fit` in the middle of its second epoch."""
    Path(folder, "train.py").write_text(TRAINING)
    half = re.compile(r"Epoch 2/3 +[3-9]\d%.*accuracy")
    text = at_terminal(
        [sys.executable, "train.py"],
        folder,
        lambda text: half.search(text) is not None,
        PYTHONPATH=str(ROOT / "examples"),
    )
    frame = text[: [match.end() for match in re.finditer(r"ETA [\d:]+", text)][-1]]
    return picture("terminal-fit", [("python train.py", frame)])


def live_status(folder: str) -> Path:
    """`opbox status --live` at a server that two programs train on."""
    server = Live("none", Path(folder))
    env = {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS["ann"]}
    Path(folder, "train.py").write_text(TRAINING.replace("num_epoch=3", "num_epoch=300"))
    command = [sys.executable, "train.py"]
    environment = os.environ | env | {"PYTHONPATH": str(ROOT / "examples"), "OPBOX_PROGRESS": "0"}
    programs = [subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        status = [sys.executable, "-m", "opbox.cli", "status", "--live"]
        frames = re.compile(r"opbox [\d.]+ at .*?Ctrl-C ends this", re.DOTALL)

        def enough(text: str) -> bool:
            last = frames.findall(text)[-1:]
            return any(
                "2 sessions" in frame and len(re.findall(r" [1-9]\d+ +\d+ *\r?$", frame, re.MULTILINE)) == 2
                for frame in last
            )

        text = at_terminal(status, folder, enough, **env)
    finally:
        for program in programs:
            program.kill()
            program.wait()
        server.stop()
    return picture("terminal-status", [("opbox status --live", frames.findall(text)[-1])])


def curves() -> str:
    """The curves of a small training."""
    data = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    train = mx.io.NDArrayIter(data, data.argmax(axis=1).astype(np.float32), batch_size=20)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8), name="softmax")
    plot = mx.viz.LivePlot(frequent=2, interval=3600)
    mx.mod.Module(net).fit(
        train,
        eval_data=train,
        eval_metric=["acc", "ce"],
        num_epoch=5,
        optimizer_params={"learning_rate": 0.5},
        batch_end_callback=plot,
        eval_end_callback=plot.validation,
    )
    return plot.save(IMAGES / "curves.svg")


if __name__ == "__main__":
    for name, (symbol, shape) in NETWORKS.items():
        drawing = mx.viz.plot_network(symbol, title=name, save_format="svg", shape=shape)
        print(drawing.render(name, IMAGES))
    print(curves())
    with tempfile.TemporaryDirectory() as scratch:
        NETWORKS["lenet"][0].save(Path(scratch) / "lenet-symbol.json")
        data = "data=1,1,28,28"
        listed = [["status"], ["infer-shape", "lenet-symbol.json", data], ["plot", "lenet-symbol.json", data]]
        listed.append(["run", "lenet-symbol.json", "data=random:1,1,28,28", "--draw-params"])
        listed.append(["bench", "lenet-symbol.json", data, "--seconds", "1"])
        print(picture("terminal", [opbox(words, scratch) for words in listed]))
        print(training_bar(scratch))
        print(live_status(scratch))
