"""The `opbox` command.

opbox serve --port 8000                      a server
opbox status                                 the server that OPBOX_URL names, and its sessions
opbox ops Convolution                        what an operator computes and takes
opbox infer-shape net-symbol.json data=1,3,224,224
opbox lint my_operator.py                    run the operators of a file, and check them
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError

from . import _schema, connection, symbol
from ._schema.functions import docstring
from .inference import infer_shape

__all__ = ["main"]

COMMANDS = "opbox.commands"
"""The group of entry points for commands that other distributions bring: `serve`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status, with the reason of a failure on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["serve"]:
        return _serve(words[1:])
    if words[:1] == ["lint"]:
        from .lint import main as lint

        return lint(words[1:])
    parser = argparse.ArgumentParser(prog="opbox", description="Operators over HTTP, with MXNet's Symbol API.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="start a server (opbox serve --help)", add_help=False)
    commands.add_parser("lint", help="check the operators of a file (opbox lint --help)", add_help=False)
    commands.add_parser("status", help="the server that OPBOX_URL names, and its sessions")
    ops = commands.add_parser("ops", help="list the operators, or tell one")
    ops.add_argument("name", nargs="?", help="an operator's name or alias")
    infer = commands.add_parser("infer-shape", help="the shapes inside a saved symbol")
    infer.add_argument("file", help="a -symbol.json file of opbox or MXNet")
    infer.add_argument(
        "shapes", nargs="*", metavar="name=1,3,224,224", help="shapes that are known; 0 for unknown sizes"
    )
    options = parser.parse_args(words)
    try:
        if options.command == "status":
            return _status()
        if options.command == "ops":
            return _ops(options.name)
        return _infer(options.file, options.shapes)
    except BrokenPipeError:
        # Whoever reads has seen enough (`opbox ops | head`); the interpreter must not flush into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MXNetError, OSError, ValueError) as error:
        print(f"opbox: {error}", file=sys.stderr)
        return 1


def _serve(arguments: Sequence[str]) -> int:
    for command in entry_points(group=COMMANDS, name="serve"):
        return int(command.load()(list(arguments)) or 0)
    print("opbox serve: needs opbox-service: pip install 'opbox[server]'", file=sys.stderr)
    return 1


def _status() -> int:
    transport = connection.transport()
    about = transport.call("GET", routes.ABOUT).header
    print(f"{about.get('name', 'opbox')} {about.get('version', '')} at {transport.address}")
    transport.call("GET", routes.READY)
    print("ready")
    sessions: list[dict[str, Any]] = transport.call("GET", routes.SESSIONS).header.get("sessions", [])
    print(f"{len(sessions)} session{'' if len(sessions) == 1 else 's'} of yours")
    for session in sessions:
        print("  " + "  ".join(f"{key}={value}" for key, value in session.items()))
    return 0


def _ops(name: str | None) -> int:
    if name is None or _schema.find(name) is None:
        # Those of packages and of a server's own files.
        connection.refresh_operators()
    if name is None:
        for op in _schema.operators():
            print(f"{op.name:34} {op.doc.split('. ')[0]}"[:120].rstrip())
        return 0
    op = _schema.get(name)
    if op.aliases:
        print(f"{op.name} (also {', '.join(op.aliases)})\n")
    else:
        print(f"{op.name}\n")
    print(docstring(op, op.name))
    return 0


def _infer(file: str, known_shapes: Sequence[str]) -> int:
    net = symbol.load(file)
    shapes = {}
    for text in known_shapes:
        name, equals, dims = text.partition("=")
        if not equals:
            raise ValueError(f"shapes: expected name=1,3,224,224, got {text!r}")
        try:
            shapes[name] = tuple(int(d) for d in dims.strip("()[] ").split(",") if d.strip())
        except ValueError:
            raise ValueError(f"shape of {name}: expected whole numbers with commas, got {dims!r}") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments, _, states = infer_shape(net, True, (), shapes)
        inside, outputs = net.get_internals(), infer_shape(net.get_internals(), True, (), shapes)[1]
    assert arguments is not None
    assert states is not None
    assert outputs is not None
    kinds = dict.fromkeys(net.list_arguments(), "argument") | dict.fromkeys(net.list_auxiliary_states(), "state")
    kinds |= dict.fromkeys(net.list_outputs(), "output")
    rows = [(name, shape, kinds.get(name, "")) for name, shape in zip(inside.list_outputs(), outputs, strict=True)]
    width = max(len(name) for name, _, _ in rows)
    complete = True
    for name, shape, kind in rows:
        known = bool(shape) and 0 not in shape
        complete &= known
        dims = "(" + ", ".join(str(d) if d else "?" for d in shape) + ("," if len(shape) == 1 else "") + ")"
        print(f"{name:{width}}  {dims if shape else '?':28} {kind}".rstrip())
    if not complete:
        print("opbox: the shapes given leave some unknown (?)", file=sys.stderr)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
