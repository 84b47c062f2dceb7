"""What a backup has: the names of its files, and the documents at its beginning and end.

An archive is a tar of regular files. `opbox-backup.json` comes first and says what wrote it; `SHA256SUMS` comes last,
so that an archive that was cut off has none. `sha256sum -c SHA256SUMS` checks it where it is unpacked.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from importlib.metadata import version

from opbox_protocol.errors import DamagedFileError

__all__ = ["ABOUT", "ARCHIVE", "LEDGER", "SUMS", "TOKENS", "ArchiveLabel", "check_name", "parse_sums", "sums_text"]

ABOUT, SUMS = "opbox-backup.json", "SHA256SUMS"
LEDGER = "usage.sqlite"
TOKENS = "secrets/tokens.json"
"""The file of tokens, where it was asked for."""
ARCHIVE = 1
"""The format of archives that this version writes, and the newest that it reads."""
MAX_DOCUMENT = 1 << 16
"""Maximum bytes of the document at the beginning."""
OWNER, NAME = "[0-9a-f]{32}", "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
NAMES = re.compile(
    rf"checkpoints/{OWNER}/{NAME}(@[0-9]{{1,18}})?\.checkpoint|"
    rf"models/{OWNER}/[A-Za-z0-9][A-Za-z0-9_-]{{0,63}}/[1-9][0-9]{{0,9}}/{NAME}|"
    rf"datasets/{OWNER}/blocks/[0-9a-f]{{64}}|datasets/{OWNER}/named/{NAME}\.json|"
    rf"{re.escape(LEDGER)}|audit\.log(\.[1-9][0-9]{{0,3}})?|{re.escape(TOKENS)}"
)


@dataclass(frozen=True, slots=True)
class ArchiveLabel:
    """What an archive says of itself.

    Attributes:
        archive: the archive's format.
        format: of the state in it.
        opbox: the version that wrote it.
        time: when, in UTC: "2030-01-31T00:00:00Z".
    """

    archive: int
    format: int
    opbox: str
    time: str

    def to_json(self) -> dict[str, object]:
        """As the archive has it, and as `opbox restore --json` prints it."""
        return asdict(self)

    @classmethod
    def parse(cls, text: bytes) -> ArchiveLabel:
        """What an archive says; DamagedFileError where it says nothing, or where it is newer than this version."""
        try:
            document = json.loads(text)
            about = cls(*(document[name] for name in ("archive", "format", "opbox", "time")))
            numbers, words = (about.archive, about.format), (about.opbox, about.time)
            if any(type(n) is not int or n < 0 for n in numbers) or not all(isinstance(word, str) for word in words):
                raise ValueError("wrong values")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DamagedFileError(f"{ABOUT}: expected what opbox backup writes, got {text[:80]!r}") from None
        if about.archive > ARCHIVE:
            raise DamagedFileError(
                f"expected an archive of format {ARCHIVE} or older, got format {about.archive}, which opbox "
                f"{about.opbox} wrote (this is opbox {version('opbox-service')}): restore it with that version"
            )
        return about


def check_name(name: str) -> None:
    """Raise DamagedFileError where no file of a backup has this name."""
    if not NAMES.fullmatch(name):
        raise DamagedFileError(
            f"expected files of a state directory, such as usage.sqlite, got {name[:120]!r}: it was not written by "
            "opbox backup"
        )


def sums_text(sums: dict[str, str]) -> bytes:
    """The list of SHA-256 by name, as `sha256sum` writes it."""
    return "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()


def parse_sums(text: bytes) -> dict[str, str]:
    """The list that `sums_text` wrote; DamagedFileError for another text."""
    rows = [re.fullmatch(r"([0-9a-f]{64})  (\S+)", line) for line in text.decode("ascii", "replace").splitlines()]
    if not all(rows):
        raise DamagedFileError(f"{SUMS}: expected lines of a SHA-256 and a name, got others")
    return {row[2]: row[1] for row in rows if row is not None}
