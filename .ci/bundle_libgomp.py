"""Put libgomp into the wheel of opbox-ops, for machines that have none: oneDNN is linked with it.

    python .ci/bundle_libgomp.py WHEEL

The library is that of scikit-learn's wheel, which is built for systems as old as ours is for. It gets its usual name
back, by which oneDNN asks for it. It is under the GNU GPL 3 with GCC's exception for runtime libraries, whose text and
the address of its sources go with it.
"""

import sys
from importlib.metadata import distribution
from pathlib import Path

from auditwheel.wheeltools import InWheelCtx

FOLDER = Path("opbox_ops", "cpu", "libgomp")
NAME = "libgomp.so.1"
NOTICE = "Name: GCC runtime library"


def bundle(wheel: Path) -> None:
    """Add the library and its licence to a wheel, in place."""
    package = distribution("scikit-learn")
    files = {Path(str(package.locate_file(file))) for file in package.files or ()}
    [library] = [file for file in files if file.name.startswith("libgomp-") and ".so" in file.name]
    [notice] = [
        text for text in (file.read_text("utf-8") for file in files if file.name == "COPYING") if NOTICE in text
    ]
    with InWheelCtx(wheel, wheel) as context:
        folder = Path(context.name) / FOLDER
        folder.mkdir()
        own, usual = library.name.encode() + b"\0", NAME.encode() + b"\0"
        content = library.read_bytes()
        assert content.count(own) == 1, f"{library}: expected its own name in it once"
        (folder / NAME).write_bytes(content.replace(own, usual.ljust(len(own), b"\0")))
        words = notice[notice.index(NOTICE) :]
        (folder / "LICENSE").write_text(words.replace("scikit_learn.libs/libgomp*.so*", str(FOLDER / NAME)), "utf-8")


if __name__ == "__main__":
    bundle(Path(sys.argv[1]).resolve())
