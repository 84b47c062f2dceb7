"""A headless Chromium of Debian's, driven through selenium: never another network, nothing kept afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MISSING_BROWSER = (
    "chromium: expected the programs chromium and chromedriver, got none: run `make browser` as root, or install both "
    "(on Debian: apt-get install chromium chromium-driver)"
)
MISSING_PACKAGES = "selenium and axe-core-python: expected both to be installed, got neither: run `make test-page`"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    # What the page must never do is refused by the browser too: no name but this machine's can be resolved.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
DESKTOP = (1280, 900)
PHONE = (390, 844)


def missing() -> str | None:
    """What this machine lacks for the tests of the page, and how to get it; None where nothing is missing."""
    if not all(map(shutil.which, ("chromium", "chromedriver"))):
        return MISSING_BROWSER
    return None if all(map(find_spec, ("selenium", "axe_core_python"))) else MISSING_PACKAGES


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser with its own empty profile in `profile`; ended with the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(120)
    try:
        resize(driver, DESKTOP)
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, size: tuple[int, int]) -> None:
    """Give the page this width and height; narrow ones count as a phone's."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver: Any, scheme: str) -> None:
    """Have the browser ask for "light" or "dark" colours."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
