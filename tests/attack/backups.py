"""A backup whose ledger is none, put in place of a server's state, on which a server then starts."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import Live

__all__ = ["ATTACKS"]

ABOUT = b'{"archive": 1, "format": 1, "opbox": "1.0.0", "time": "2030-01-31T00:00:00Z"}'
FILES = {"opbox-backup.json": ABOUT, "usage.sqlite": b"no database, whatever its name says"}


def forged(box: Box) -> Outcome:
    sums = "".join(f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in FILES.items()).encode()
    file, state = box.folder / "forged.tar", box.folder / "restored"
    with tarfile.open(file, "w") as tar:
        for name, text in {**FILES, "SHA256SUMS": sums}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    python = str(box.live.process.args[0])  # type: ignore[index]
    state.mkdir()
    (state / "audit.log").write_text("before\n")
    command = [python, "-m", "opbox.cli", "restore", str(file), "--state-dir", str(state), "--replace"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    before = (state / "audit.log").exists()
    starts = _starts(box.folder / "another", state, python)
    says = f"{'refused' if done.returncode else 'restored'}, the state is {'as it was' if before else 'gone'}"
    return Outcome(done.returncode == 1 and before and starts, f"{says}, a server {'starts' if starts else 'does not'}")


def _starts(folder: Path, state: Path, python: str) -> bool:
    folder.mkdir()
    try:
        server = Live("none", folder, python=python, OPBOX_STATE_DIR=str(state))
    except Exception:
        return False
    return server.stop() == 0


ATTACKS = [Attack("forged-backup", "a backup whose ledger is no database", forged)]
