"""README's "Serve a trained network": its lines make the model, and the page names the picture of a digit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.contract.live import Live
from tests.models.conftest import loaded
from tests.page.served import png
from tests.page.user import User

ROOT = Path(__file__).resolve().parents[2]
DIGIT = 8
"""Which of scikit-learn's digits is shown: an eight."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Live]:
    """A server with the model that README's lines make."""
    section = (ROOT / "README.md").read_text("utf-8").partition("## Serve a trained network")[2]
    *lines, serve = section.split("```")[1].strip().splitlines()
    assert serve == ".venv/bin/opbox serve --models models"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    subprocess.run(["sh", "-ec", "\n".join(lines)], cwd=tmp_path, check=True)
    live = Live("process", tmp_path, OPBOX_MODELS=str(tmp_path / "models"))
    loaded(live)
    yield live
    assert live.stop() == 0


def test_the_page_names_a_digit(served: Live, driver: Any, tmp_path: Path) -> None:
    digit = (255 / 16 * load_digits().images[DIGIT]).repeat(16, 0).repeat(16, 1)
    user = User(driver, served)
    user.sign_in("ann", "#/models/digits/1")
    file = str(png(tmp_path / "digit.png", np.repeat(digit[..., None], 3, 2)))
    user.wait_for("#model-input-0-file").send_keys(file)
    user.wait_for(".input .note", "digit.png, 128 × 128 pixels: 1 × 64")
    user.press("form button.main")
    user.wait_for(".results .classes", "eight")
    user.wait_for(".results figcaption", "softmax_output: 1 × 10 FP32")
