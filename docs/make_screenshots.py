"""Take the pictures of the page that stand in the documents: `make screenshots`.

python docs/make_screenshots.py       writes docs/images/page-*.png

A server with a model, and two programs that train, are started for it, and ended.
"""

from __future__ import annotations

import base64
import itertools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.gateway_nodes import GIB, Box  # noqa: E402
from tests.contract.live import FC, TOKENS, Live  # noqa: E402
from tests.models.conftest import loaded  # noqa: E402
from tests.page.browser import PHONE, chromium, missing, prefer, resize  # noqa: E402
from tests.page.conftest import EXAMPLES, TRAINING  # noqa: E402
from tests.page.served import png  # noqa: E402
from tests.page.user import User  # noqa: E402

from opbox_service.cluster.documents import NodeReport, ReplicaReport, SessionReport  # noqa: E402
from opbox_service.session_ids import node_of  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WATCHED_S = 45
"""How long the page watches before its picture is taken: its curves are to be seen."""

RECURRENT = """
import numpy as np
import opbox as mx
from networks.lstm import build_with_cell

np.random.seed(0)
x = np.random.rand(200, 24, 16).astype("float32")
y = np.random.randint(0, 10, 200).astype("float32")
mod = mx.mod.Module(build_with_cell(mx, length=24, hidden=32))
mod.fit(mx.io.NDArrayIter(x, y, 20), num_epoch=100000, initializer=mx.init.Xavier())
"""
"""A network whose 24 steps are drawn once: for the picture of a session."""


@contextmanager
def training(server: Live, owner: str, text: str) -> Iterator[None]:
    """A program that trains for an owner."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
    environment |= {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS[owner], "PYTHONPATH": str(EXAMPLES)}
    program = subprocess.Popen([sys.executable, "-c", text], env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        program.kill()
        program.wait()


def mistakes(server: Live) -> None:
    """Requests of the kind that people send, to be seen among the errors."""
    server.json("POST", "/v1/infer_shape", {"graph": FC, "shapes": {"x": [2, 3], "w": [5, 3]}})
    server.json("POST", "/v1/forward", {"graph": FC, "inputs": []}, owner="bob")
    server.json("GET", "/v1/ops/FullyConected", owner="bob")


DIGIT = 8
"""The picture that is tried: the ninth of scikit-learn's digits."""
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def save_models(folder: Path) -> None:
    """Write the digits' network, trained by the example's script, with names of its classes."""
    (folder / "digits").mkdir(parents=True)
    for file in (EXAMPLES / "data").glob("digits-mlp-*"):
        shutil.copy(file, folder / "digits")
    (folder / "digits" / "names.txt").write_text("\n".join(CLASSES))
    (folder / "digits" / "model.toml").write_text(
        'max_batch = 16\nlabels = "names.txt"\n[inputs.data]\nshape = [-1, 64]\n'
    )


@contextmanager
def calling(server: Live, digits: np.ndarray) -> Iterator[None]:
    """Threads that call the model, each in its own rhythm."""
    stop = threading.Event()

    def call(number: int) -> None:
        rows = digits[number::8]
        for turn in itertools.count():
            if stop.wait(0.05 + 0.05 * number * (1 + math.sin(turn / 40))):
                return
            tensor = {"name": "data", "shape": [1, 64], "datatype": "FP32", "data": rows[turn % len(rows)].tolist()}
            server.clients["bob"].post("/v2/models/digits/infer", json={"inputs": [tensor]})

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def take(driver: Any, name: str, size: tuple[int, int], until: str = "", since: str = "body") -> None:
    """Write docs/images/page-NAME.png; from the top of the element `since` to the end of `until`, where it says one."""
    resize(driver, size)
    driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    time.sleep(1.5)
    options: dict[str, Any] = {"format": "png"}
    if until:
        place = "return document.querySelector(arguments[0]).getBoundingClientRect()"
        top, end = (driver.execute_script(f"{place}.{side}", one) for side, one in (("top", since), ("bottom", until)))
        options |= {
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": top, "width": size[0], "height": end - top + 24, "scale": 1},
        }
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", options)
    path = IMAGES / f"page-{name}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def cluster_picture(folder: Path, driver: Any) -> None:
    """The cluster's view, of three nodes behind a gateway, and one that was lost."""
    folder.mkdir()
    with Box(folder, ("head", "rack1", "rack2", "attic")) as box:
        ids = [box.ann.post("/v1/sessions", json={}).json()["id"] for _ in range(9)]

        def report() -> None:
            for at, name in enumerate(("head", "rack1", "rack2")):
                sessions = tuple(SessionReport(id, "ann", "cpu", 1 << 20) for id in ids if node_of(id) == name)
                served = {model: ReplicaReport(("1",)) for model in ("digits", "faces")[: 2 - at]}
                box.controller.report(name, NodeReport({"cpu": (9 - 2 * at) * GIB // 10}, sessions, served), 0.0)
            box.controller.lost("attic", 0.0)

        box.change(report)
        user = User(driver, box.lives["head"], box.url)
        user.sign_in("boss", "#/cluster")
        user.wait_for('th[data-label="Node"]', "rack2")
        take(driver, "cluster", (1280, 900), ".grid > :last-child")
        user.sign_out()


def main() -> None:
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        save_models(folder / "models")
        settings = {"OPBOX_WORKERS": "2", "OPBOX_MAX_SESSION_BYTES": str(8 << 30)}
        server = Live("process", folder, OPBOX_MODELS=str(folder / "models"), **settings)
        stack.callback(server.stop)
        loaded(server)
        for owner, text in (("ann", RECURRENT), ("bob", TRAINING)):
            stack.enter_context(training(server, owner, text))
        driver = stack.enter_context(chromium(folder / "profile"))
        user = User(driver, server)
        user.sign_in("boss")
        mistakes(server)
        user.wait_for("tbody a")
        time.sleep(WATCHED_S)
        take(driver, "overview", (1280, 1010))
        prefer(driver, "dark")
        take(driver, "overview-dark", (1280, 1010))
        prefer(driver, "light")
        take(driver, "overview-phone", PHONE)

        resize(driver, (1280, 1200))
        (session,) = server.json("GET", "/v1/sessions").header["sessions"]
        user.sign_in("ann", f"#/sessions/{session['id']}")
        user.wait_for(".drawing svg .node")
        time.sleep(WATCHED_S)
        user.press(".drawing .node", "FullyConnected")
        take(driver, "session", (1280, 1320), ".node-details")

        digits = load_digits()
        digit = (255 / 16 * digits.images[DIGIT]).repeat(16, 0).repeat(16, 1)
        with calling(server, digits.data / 16):
            user.sign_in("ann", "#/models/digits/1")
            time.sleep(WATCHED_S)
            user.wait_for("#model-input-0-file").send_keys(
                str(png(folder / "digit.png", digit[..., None].repeat(3, 2)))
            )
            user.wait_for(".input .note", "digit.png")
            user.press("form button.main")
            user.wait_for(".results .classes")
            take(driver, "model", (1280, 1500), ".results figure", ".heading")

        cluster_picture(folder / "cluster", driver)

        user.sign_in("ann", "#/ops/Pooling")
        user.type("#input-data-shape", "1, 1, 3, 3")
        user.type("#input-data-values", "[[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]]")
        user.type("#param-kernel", "(2, 2)")
        user.press("button", "Backward")
        user.wait_for(".results figcaption", "gradient of data")
        prefer(driver, "dark")
        take(driver, "operator-dark", (1280, 1500))

        prefer(driver, "light")
        user.open("/docs")
        infer = "#operations-graphs-infer_shape"
        user.press(f"{infer} .opblock-summary-control")
        user.press(f"{infer} .try-out__btn")
        user.press(f"{infer} .execute")
        user.wait_for(f"{infer} .live-responses-table")
        # As somebody would who has to read on: what scrolls is made lower.
        lower = "document.querySelectorAll(arguments[0]).forEach((one) => (one.style.height = '9rem'))"
        driver.execute_script(lower, f"{infer} textarea, {infer} .highlight-code pre, {infer} .curl")
        take(driver, "docs", (1280, 1250), f"{infer} .live-responses-table .highlight-code", ".filter-container")


if __name__ == "__main__":
    main()
