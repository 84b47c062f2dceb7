"""The page's view of models: what is served, what it does, a form to try one, loading and unloading."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.folders import expected
from tests.page.served import LABELS, png
from tests.page.test_page import asked_home_only
from tests.page.user import User

ROW = """
    const row = [...document.querySelectorAll("main tbody tr")].find(
        (one) => one.querySelector("th a")?.textContent === arguments[0]);
    return row && Object.fromEntries([...row.children].map((cell) => [cell.dataset.label, cell.textContent]));
"""


def cells(user: User, model: str) -> dict[str, str]:
    """A model's row of the table, by column; empty where there is none."""
    return user.driver.execute_script(ROW, model) or {}


def infer(server: Live, rows: int = 1) -> None:
    """Call the model with labels."""
    tensor = {"name": "data", "shape": [rows, 4], "datatype": "FP32", "data": [0.5] * 4 * rows}
    assert server.clients["bob"].post("/v2/models/animals/infer", json={"inputs": [tensor]}).status_code == 200


def choose(user: User, selector: str, value: str) -> None:
    """Choose an option of a field."""
    script = """
        const field = document.querySelector(arguments[0]);
        field.value = arguments[1];
        field.dispatchEvent(new Event("change", { bubbles: true }));
    """
    user.driver.execute_script(script, selector, value)


def numbers(user: User) -> np.ndarray:
    """The answer that is shown as numbers."""
    return np.array(json.loads(user.text(".results figure pre")))


def test_models_are_listed_with_their_state_and_traffic(user: User, server: Live) -> None:
    user.sign_in("ann", "#/models")
    user.wait_for('th[data-label="Model"] a', "animals")
    before = int(cells(user, "animals")["Requests"])
    infer(server, 3)
    user.wait(lambda: int(cells(user, "animals")["Requests"]) == before + 1, "one request more")
    row = cells(user, "animals")
    assert row["State"] == "READY"
    assert row["Device"] == "cpu"
    assert row["Failed"] == "0"
    assert re.fullmatch(r"[\d.]+ ms", row["Median"])
    assert "3: " in row["Runs by size"]
    assert cells(user, "broken")["State"].startswith("UNAVAILABLE: ")
    assert not user.all("td .buttons"), "only an administrator loads models"


def test_a_model_s_network_is_drawn_and_its_traffic_is_counted(user: User, server: Live) -> None:
    user.sign_in("ann", "#/models")
    user.press('a[aria-label="Model animals, version 1"]')
    user.wait_for(".drawing svg .node", "fc1")
    assert user.driver.title == "animals · Models · opbox"
    assert user.text("#views [aria-current]") == "Models"
    labels = user.labels(".drawing .node")
    assert "data, ? × 4 float32" in labels
    assert "SoftmaxOutput softmax, ? × 3 float32" in labels
    assert user.text('[data-label="Shape"]').split("\n") == ["? × 4", "? × 3"]
    user.wait(lambda: user.text('dd[data-name="Requests"]'), "figures")
    before = int(user.text('dd[data-name="Requests"]'))
    infer(server, 2)
    user.wait(lambda: int(user.text('dd[data-name="Requests"]')) == before + 1, "one request more")
    user.wait_for(".bars .name", "2 examples")
    assert not user.all(".heading .buttons")


def test_typed_numbers_are_answered_with_named_classes(user: User) -> None:
    user.sign_in("ann", "#/models/animals/1")
    x = np.array([[1, -2, 0.5, 3], [0, 0, 1, 1]], np.float32)
    user.type("#model-input-0-values", json.dumps(x.tolist()))
    user.press("form button.main")
    user.wait_for(".results figcaption", "softmax_output: 2 × 3 FP32")
    probabilities = expected(x)
    best = [[LABELS[i] for i in np.argsort(-row)] for row in probabilities]
    names = user.text(".results .classes .name").split("\n")
    assert names == [*best[0], *best[1]]
    bars = user.driver.execute_script("return [...document.querySelectorAll('.classes meter')].map((e) => e.value)")
    np.testing.assert_allclose(bars, -np.sort(-probabilities, axis=1).ravel(), rtol=1e-5)  # the page's own float64
    user.press(".results summary", "curl")
    assert "$OPBOX_TOKEN" in user.text(".results")
    assert TOKENS["ann"] not in user.text("main")
    user.driver.execute_script("document.querySelector('#model-input-0-values').value = ''")
    user.press("form button.main")
    user.wait_for(".results figcaption", "softmax_output: 1 × 3 FP32")


def test_what_is_wrong_with_an_input_is_said_in_a_sentence(user: User, tmp_path: Path) -> None:
    user.sign_in("ann", "#/models/animals/1")
    for values, sentence in (
        ("1 2 x", 'expected numbers, got "x"'),
        ("1 2 3", "data: expected 4 values for the shape 1, 4, got 3"),
        ("[[1, 2, 3]]", "input 'data': expected shape [-1, 4], got [1, 3]"),
    ):
        user.type("#model-input-0-values", values)
        user.press("form button.main")
        user.wait_for("form > .error", sentence)
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "big.npy", np.ones(4, ">f4"))
    np.save(tmp_path / "names.npy", np.array(["cat"]))
    np.save(tmp_path / "cut.npy", np.ones(4, np.float32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-2])
    (tmp_path / "text.png").write_text("no image")
    for name, sentence in (
        ("text.npy", "expected a file of numpy.save"),
        ("big.npy", "expected an array of little-endian numbers, got dtype >f4"),
        ("names.npy", "got dtype <U3"),
        ("cut.npy", "expected 16 bytes of values, got 14"),
        ("text.png", "expected an image that this browser can read, got another file"),
    ):
        user.wait_for("#model-input-0-file").send_keys(str(tmp_path / name))
        user.wait_for(".input .error", sentence)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", "<f2", "<i8", "|u1"])
def test_an_array_of_a_file_reaches_the_model(user: User, tmp_path: Path, dtype: str, order: str) -> None:
    user.sign_in("ann", "#/models/pixels/1")
    x = np.arange(12).reshape(1, 3, 2, 2)
    np.save(tmp_path / "x.npy", np.asarray(x, dtype, order=order))
    user.wait_for("#model-input-0-file").send_keys(str(tmp_path / "x.npy"))
    user.wait_for(".input .note", "1 × 3 × 2 × 2")
    user.press("form button.main")
    user.wait_for(".results figcaption", "double_output: 1 × 3 × 2 × 2 FP32")
    assert numbers(user).tolist() == (2 * x).tolist()


def test_an_image_reaches_the_model_as_its_input_wants_it(user: User, tmp_path: Path) -> None:
    pixels = np.arange(0, 240, 20).reshape(2, 2, 3)
    first = pixels.transpose(2, 0, 1)[None]
    file = str(png(tmp_path / "two.png", pixels))
    user.sign_in("ann", "#/models/pixels/1")
    user.wait_for("#model-input-0-file").send_keys(file)
    user.wait_for(".input .note", "two.png, 2 × 2 pixels: 1 × 3 × 2 × 2")
    mean, std = [0.5, 0.25, 0.125], [0.5, 2, 4]
    centre, spread = (np.reshape(one, (1, 3, 1, 1)) for one in (mean, std))
    for scaling, values in (
        ("byte", first.astype(float)),
        ("unit", first / 255),
        ("standard", (first / 255 - centre) / spread),
    ):
        if scaling == "standard":
            for name, by_channel in (("mean", mean), ("std", std)):
                script = "document.querySelector(arguments[0]).value = arguments[1]"
                user.driver.execute_script(script, f"#model-input-0-{name}", ", ".join(map(str, by_channel)))
        choose(user, "#model-input-0-scaling", scaling)
        user.press("form button.main")
        # The page shows six digits.
        user.wait(lambda values=values: matches(user, 2 * values), scaling)
    assert user.labels("canvas") == ["two.png as image gets it, 1 × 3 × 2 × 2"]


def matches(user: User, values: np.ndarray) -> bool:
    """Whether the answer has these numbers; it may still be that of before."""
    text = user.text(".results figure pre")
    return (
        bool(text) and np.shape(json.loads(text)) == values.shape and np.allclose(json.loads(text), values, 1e-5, 1e-6)
    )


def test_an_image_is_resized_and_its_channels_come_last(user: User, tmp_path: Path) -> None:
    """Red on the left, blue on the right, between green bands: its middle has no green."""
    pixels = np.zeros((80, 80, 3))
    pixels[:, :40, 0] = pixels[:, 40:, 2] = 255
    pixels[:16] = pixels[64:] = (0, 255, 0)
    file = str(png(tmp_path / "bands.png", pixels))
    user.sign_in("ann", "#/models/pixels-last/1")
    user.wait_for("#model-input-0-file").send_keys(file)
    user.wait_for(".input .note", "bands.png, 80 × 80 pixels: 1 × 2 × 4 × 3")
    assert user.driver.execute_script("return document.querySelector('#model-input-0-layout').value") == "last"

    def answered(green: bool) -> bool:
        text = user.text(".results figure pre")
        values = np.array(json.loads(text)) if text else np.zeros((0, 0))
        return values.shape == (1, 2, 4, 3) and bool((values[..., 1].max() > 0.1) == green)

    # How a browser smooths is its own affair: which colour is more is not.
    for fit, green in (("stretch", True), ("middle", False)):
        choose(user, "#model-input-0-fit", fit)
        user.press("form button.main")
        user.wait(lambda green=green: answered(green), fit)
        red, _, blue = np.moveaxis(np.array(json.loads(user.text(".results figure pre")))[0], -1, 0)
        assert ((red > blue) == np.array([[True, True, False, False]] * 2)).all()
    choose(user, "#model-input-0-layout", "first")
    user.wait_for(".input .error", "expected 1, 3 or 4 channels for an image, got 2: choose the other layout")


def test_an_image_becomes_a_row(user: User, tmp_path: Path) -> None:
    """Four numbers are a grey square of 2 by 2."""
    grey = np.array([0, 51, 102, 255])
    file = str(png(tmp_path / "grey.png", np.repeat(grey.reshape(2, 2, 1), 3, axis=2)))
    user.sign_in("ann", "#/models/animals/1")
    user.wait_for("#model-input-0-file").send_keys(file)
    user.wait_for(".input .note", "grey.png, 2 × 2 pixels: 1 × 4")
    user.press("form button.main")
    user.wait_for(".results figcaption", "softmax_output: 1 × 3 FP32")
    user.press(".results summary", "Numbers")
    assert matches(user, expected((grey / 255).astype(np.float32).reshape(1, 4)))


def test_an_administrator_loads_and_unloads(user: User, server: Live, models: Path) -> None:
    user.sign_in("boss", "#/models")
    user.press('button[aria-label="Load model broken"]')
    user.wait_for("section > .error", "broken")
    infer(server)
    user.press('button[aria-label="Reload model animals"]')
    user.wait_for('button[aria-label="Reload model animals"]:not([disabled])')
    user.press('button[aria-label="Unload model pixels"]')
    user.wait_for("dialog[open] h2", "Unload pixels?")
    assert "Cancel" in user.focused
    user.press("dialog[open] button", "Cancel")
    assert cells(user, "pixels")["State"] == "READY"
    user.press('button[aria-label="Unload model pixels"]')
    user.press("dialog[open] .danger")
    user.wait(lambda: cells(user, "pixels")["State"] == "UNAVAILABLE: unloaded", "the model's end")
    assert server.clients["bob"].get("/v2/models/pixels/ready").status_code == 400
    user.press('a[aria-label="Model pixels, version 1"]')
    user.wait_for("main .note", "unloaded")
    user.press('.heading button[aria-label="Load model pixels"]')
    user.wait_for('.heading button[aria-label="Unload model pixels"]')
    assert server.clients["bob"].get("/v2/models/pixels/ready").status_code == 200


def test_a_server_without_models_says_how_to_get_one_served(user: User, tmp_path: Path) -> None:
    plain = Live("none", tmp_path)
    other = User(user.driver, plain)
    other.sign_in("ann", "#/models")
    other.wait_for("main .note", "opbox serve --models models")
    plain.stop()


def test_the_views_of_models_ask_no_other_host(user: User, tmp_path: Path) -> None:
    user.driver.get_log("performance")
    user.sign_in("ann", "#/models")
    user.press('a[aria-label="Model pixels, version 1"]')
    file = png(tmp_path / "one.png", np.zeros((2, 2, 3)))
    user.wait_for("#model-input-0-file").send_keys(str(file))
    user.press("form button.main")
    user.wait_for(".results figcaption", "double_output")
    asked_home_only(user)
