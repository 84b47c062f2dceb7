"""VersionDocument: what an object store has of a published version beside the bytes of its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opbox_protocol.errors import BadRequestError

from .model_store import RECORD, Buffer, Publication, checked_names, read_record

__all__ = ["MAX_DOCUMENT", "VersionDocument"]

MAX_DOCUMENT = 1 << 20
"""Maximum bytes of a document: 1000 callers with long names."""
MAX_PARTS = 100_000
FORM = "opbox-model-1"


@dataclass(frozen=True, slots=True)
class VersionDocument:
    """A version of a published model.

    Attributes:
        publication: what was said when it was published.
        draft: a name that no other upload has; its parts have it.
        files: name, bytes and SHA-256 of each file, in the order of their bytes in the parts.
        count: number of parts.
    """

    publication: Publication
    draft: str
    files: tuple[tuple[str, int, str], ...]
    count: int

    @classmethod
    def of(cls, publication: Publication, files: Mapping[str, Buffer], draft: str, part_bytes: int) -> VersionDocument:
        """The document of a version's files, which go into parts of at most so many bytes."""
        rows = tuple((name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items())
        return cls(publication, draft, rows, -(-sum(size for _, size, _ in rows) // part_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(size for _, size, _ in self.files)

    @property
    def parts(self) -> list[str]:
        """The names of the parts."""
        return [f"{self.publication.name}@{self.draft}.{number}.part" for number in range(self.count)]

    @property
    def digest(self) -> str:
        """The SHA-256 of what it says."""
        return hashlib.sha256(self.text()).hexdigest()

    def record(self) -> bytes:
        """What the folder of a version's files has."""
        return json.dumps(asdict(self.publication)).encode()

    def text(self) -> bytes:
        """As the store has it."""
        document = {"form": FORM, **asdict(self.publication), "draft": self.draft, "parts": self.count}
        return json.dumps({**document, "files": self.files}, sort_keys=True).encode()

    @classmethod
    def parse(cls, text: bytes, name: str) -> VersionDocument:
        """A document by its text.

        Args:
            text: from the store, where anything may be.
            name: of the model.

        Raises:
            BadRequestError: no server wrote it for this model.
        """
        try:
            fields = json.loads(text)
            if fields["form"] != FORM:
                raise ValueError("another form")
            files = tuple((str(file), _count(size), str(digest)) for file, size, digest in fields["files"])
            document = cls(read_record(fields), fields["draft"], files, _count(fields["parts"]))
            if not re.fullmatch(r"[0-9a-f]{16}", document.draft):
                raise ValueError("another draft")
            if not all(re.fullmatch(r"[0-9a-f]{64}", digest) for _, _, digest in files):
                raise ValueError("other hashes")
            if document.publication.name != name or not 0 < document.count <= MAX_PARTS:
                raise ValueError("another model's")
            publication = checked_names(document.publication, {file: size for file, size, _ in files})
            if len({file for file, _, _ in files}) != len(files) or publication != document.publication:
                raise ValueError("other files")
        except (ValueError, KeyError, TypeError, RecursionError, BadRequestError):
            raise BadRequestError(f"expected a document that a server wrote, got {text[:60]!r}") from None
        return document

    def is_in(self, folder: Path) -> bool:
        """Return whether a folder has the version's files, by their hashes."""
        try:
            if (folder / RECORD).read_bytes() != self.record():
                return False
            if {path.name for path in folder.iterdir()} != {RECORD, *(name for name, _, _ in self.files)}:
                return False
            for name, _, digest in self.files:
                with (folder / name).open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        return False
        except OSError:
            return False
        return True


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("expected a number")
    return value
