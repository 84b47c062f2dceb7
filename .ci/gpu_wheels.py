"""Download the packages of .ci/gpu-wheels.txt into FOLDER, for a machine without a network.

    python .ci/gpu_wheels.py FOLDER [--python 3.12] [--has NAME]...

Packages that the machine has are left out. What FOLDER has of other wheels, or of other versions, is deleted.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIST = Path(__file__).with_name("gpu-wheels.txt")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


def canonical(name: str) -> str:
    """Return a package's name as all spellings of it have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed() -> dict[str, str]:
    """Return the lines of the list, by the packages' names."""
    lines = (line.split("#")[0].strip() for line in LIST.read_text("utf-8").splitlines())
    return {canonical(line.partition("==")[0]): line for line in lines if line}


def main(arguments: Sequence[str]) -> int:
    """Download; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--python", default="3.12", help="the machine's version (default: %(default)s)")
    parser.add_argument("--has", action="append", default=[], metavar="NAME", help="a package that the machine has")
    parser.add_argument("--dry-run", action="store_true", help="print the list, and download nothing")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d+", options.python):
        parser.error(f"--python: expected a version such as 3.12, got {options.python!r}")
    wanted = listed()
    has = {canonical(name) for name in options.has}
    if unknown := sorted(has - wanted.keys()):
        parser.error(f"--has: expected packages of {LIST.name}, got {', '.join(unknown)}")
    lines = [line for name, line in wanted.items() if name not in has]
    if options.dry_run:
        print("\n".join(lines))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    pins = {(name, line.partition("==")[2]) for name, line in wanted.items() if name not in has}
    for wheel in options.folder.glob("*.whl"):
        name, version, *_ = wheel.name.split("-")
        if (canonical(name), version) not in pins:
            wheel.unlink()
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as requirements:
        requirements.write("\n".join(lines) + "\n")
        requirements.flush()
        command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(options.folder), "--only-binary=:all:"]
        command += ["--no-deps", "--implementation", "cp", "--python-version", options.python]
        command += [part for platform in PLATFORMS for part in ("--platform", f"{platform}_x86_64")]
        return subprocess.run([*command, "-r", requirements.name], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
