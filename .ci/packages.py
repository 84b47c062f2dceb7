"""Copy the four distributions' sources to FOLDER, to be built there, with the addresses that a release has.

    python .ci/packages.py FOLDER [Homepage=https://… Documentation=https://… Source=https://… Changelog=https://…]

The project has no public address of its own, so that the sources name none: whoever publishes the distributions does.
"""

import re
import shutil
import sys
from pathlib import Path

from metadata import PARTS, ROOT

LABELS = ("Homepage", "Documentation", "Source", "Changelog")


def addresses(arguments: list[str]) -> dict[str, str]:
    """Addresses by their labels; those without a value are left out."""
    urls = {}
    for argument in arguments:
        label, _, url = argument.partition("=")
        if label not in LABELS:
            sys.exit(f"{argument}: expected {', '.join(LABELS)} before the first =")
        if url and not re.fullmatch(r'https?://[^\s"\\]+', url):
            sys.exit(f"{label}: expected an address with http:// or https://, got {url!r}")
        if url:
            urls[label] = url
    return urls


def copy(part: str, urls: dict[str, str], folder: Path) -> None:
    """Copy a distribution's sources, and write `[project.urls]` to their end."""
    target = folder / part
    shutil.copytree(ROOT / part, target, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    if urls:
        lines = "".join(f'{label} = "{url}"\n' for label, url in urls.items())
        with (target / "pyproject.toml").open("a") as file:
            file.write(f"\n[project.urls]\n{lines}")


if __name__ == "__main__":
    urls = addresses(sys.argv[2:])
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    for part in PARTS:
        copy(part, urls, folder)
