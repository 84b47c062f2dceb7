"""Modules that an operator may import: installed ones, and the files that `mx.operator.bundle(path)` named."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .bundle import BundledModule, SourceError

__all__ = ["bundle", "is_bundled", "is_installed", "is_there", "modules_of"]

MAX_SOURCE_BYTES = 8 << 20
"""Maximum bytes of source per bundled path."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A path that was named: its top module, and where it is."""

    name: str
    path: Path


_named: dict[str, _Named] = {}


def bundle(path: str | Path) -> None:
    """Send the module or package at `path` with every operator that imports it.

    Args:
        path: a `.py` file, or a folder: a package, or the modules that lie in it.

    Raises:
        SourceError: there is nothing of that kind.

    Example:
        >>> mx.operator.bundle("my_layers")      # a package; or "helpers.py"
    """
    place = Path(path).resolve()
    if place.is_file() and place.suffix == ".py":
        _named[place.stem] = _Named(place.stem, place)
    elif place.is_dir() and (place / "__init__.py").exists():
        _named[place.name] = _Named(place.name, place)
    elif place.is_dir() and any(place.glob("*.py")):
        for entry in sorted(place.iterdir()):
            if entry.suffix == ".py" or (entry / "__init__.py").exists():
                bundle(entry)
    else:
        raise SourceError(f"mx.operator.bundle: expected a .py file or a folder with some, got {str(path)!r}")


def is_bundled(module: str) -> bool:
    """Return whether `bundle` named the module or its package."""
    return module.split(".")[0] in _named


def is_there(module: str) -> bool:
    """Return whether a module is here at all; one that a program does without (`try: import …`) may not be."""
    return module.split(".")[0] == "__main__" or _place(module.split(".")[0]) is not None


def is_installed(module: str) -> bool:
    """Return whether a module comes with Python or from an installed package, rather than from the user's own files."""
    top = module.split(".")[0]
    if top == "__main__":
        return False
    if top in sys.stdlib_module_names or top in ("opbox", "opbox_protocol", "numpy"):
        return True
    place = _place(top)
    if place is None:
        return False
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return bool({"site-packages", "dist-packages"} & {*Path(place).parts}) or any(
        Path(place).is_relative_to(root) for root in roots if root
    )


def _place(top: str) -> str | None:
    """The file or folder of a top-level module, imported or not; None when there is none."""
    module = sys.modules.get(top)
    if module is not None:
        return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or []), "")


def modules_of(name: str) -> list[BundledModule]:
    """The source of the named module `name`: itself, or all of its package.

    Raises:
        SourceError: a file cannot be read, or all are too large.
    """
    named = _named[name.split(".")[0]]
    files = [named.path] if named.path.is_file() else sorted(named.path.rglob("*.py"))
    modules: list[BundledModule] = []
    size = 0
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"mx.operator.bundle: {file.name} cannot be read: {error}") from None
        size += len(text)
        if size > MAX_SOURCE_BYTES:
            raise SourceError(
                f"mx.operator.bundle: {named.path.name}: expected at most {MAX_SOURCE_BYTES >> 20} MiB of source: "
                "name a smaller folder"
            )
        inside = file.relative_to(named.path.parent).with_suffix("")
        package = inside.name == "__init__"
        parts = inside.parts[:-1] if package else inside.parts
        if all(part.isidentifier() for part in parts):
            shown = file.relative_to(named.path.parent).as_posix()
            modules.append(BundledModule(".".join(parts), package, shown, text))
    return modules
