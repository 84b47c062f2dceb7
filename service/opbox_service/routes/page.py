"""The page for browsers: files of this package, served as they are to anybody; what they show needs a token.

No script or style is written in a document, and nothing comes from another host: the policy says so to the browser.
The documents are the page itself, of plain modules, and /docs, where Swagger UI (page/swagger-ui) shows the HTTP API.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from opbox_protocol.errors import NotFoundError

from ..carriers import Answer, Call, Done, Headers
from .health import Place

__all__ = ["TAG", "docs", "document", "file", "library_file"]

TAG = "page"
"""The tag of the routes that the setting `page` switches off."""
DOCUMENT = "index.html"
DOCS = "docs.html"
LIBRARY = "swagger-ui"
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Headers = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-cache"),
)
DOCS_POLICY = POLICY.partition("; require-trusted-types-for")[0].replace("img-src 'self'", "img-src 'self' data:")
"""The content policy for Swagger UI: no trusted types, pictures inside its style sheet allowed."""
DOCS_HEADERS: Headers = ((b"content-security-policy", DOCS_POLICY.encode()), *HEADERS[1:])
LIBRARY_HEADERS: Headers = (*DOCS_HEADERS[:-1], (b"cache-control", b"public, max-age=604800"))
"""Browsers may cache Swagger UI's files: their addresses change with the version."""


def document(place: Place, call: Call, done: Done) -> None:
    """The page for browsers."""
    done(_answer(DOCUMENT, HEADERS))


def docs(place: Place, call: Call, done: Done) -> None:
    """The HTTP API for browsers: the OpenAPI document, to be read and tried."""
    done(_answer(DOCS, DOCS_HEADERS))


def file(place: Place, call: Call, done: Done) -> None:
    """A script, style or picture of the page."""
    done(_answer(_name(call, "page"), HEADERS))


def library_file(place: Place, call: Call, done: Done) -> None:
    """A script or style of Swagger UI."""
    done(_answer(f"{LIBRARY}/{_name(call, LIBRARY)}", LIBRARY_HEADERS))


def _name(call: Call, folder: str) -> str:
    """The name of a file, from the request's path."""
    name = call.parameters["file"]
    if name not in _names(folder):
        raise NotFoundError(
            f"GET {call.route.path.replace('{file}', name[:60])}: expected one of the page's files, got another name"
        )
    return name


def _answer(name: str, headers: Headers) -> Answer:
    return Answer({}, text=_text(name), content_type=TYPES[name.rpartition(".")[2]], headers=headers)


@cache
def _names(folder: str) -> frozenset[str]:
    root = files("opbox_service") / "page"
    entries = (root if folder == "page" else root / folder).iterdir()
    return frozenset(entry.name for entry in entries if entry.name.rpartition(".")[2] in TYPES)


@cache
def _text(name: str) -> bytes:
    return (files("opbox_service") / "page" / name).read_bytes()
