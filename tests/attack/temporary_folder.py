"""A user of the machine who puts links into the temporary folder, named like those of a server; one starts as root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.contract.isolation import settings

__all__ = ["ATTACKS"]

START_S = 60.0


def plant_links(box: Box) -> Outcome:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o1777)
        precious = Path(place, "precious")
        precious.mkdir()
        diary = precious / "diary"
        diary.write_text("dear diary")
        Path(place, "opbox-code-1-1-link").symlink_to(precious)
        server = subprocess.Popen(
            [box.live.process.args[0], "-m", "opbox_service.serve", "--port", "0"],  # type: ignore[index]
            env={**os.environ, **settings(), "TMPDIR": place, "OPBOX_RUNTIME_DIR": place},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert server.stdout is not None
        starts = "serving" in server.stdout.readline()
        untouched = diary.exists()
        server.terminate()
        server.communicate(timeout=START_S)
    words = "untouched" if untouched else "emptied"
    return Outcome(
        starts and untouched, f"the folder is {words}, the server {'starts' if starts else 'does not start'}"
    )


ATTACKS = [Attack("planted-links", "a link named like a server's folder, before a server starts", plant_links)]
