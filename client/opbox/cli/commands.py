"""The table of subcommands, and the program: `opbox --help` imports nothing that it does not print."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

__all__ = ["main"]

BROUGHT = "opbox.commands"
"""Entry point group of commands from other distributions, such as `serve`."""

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("", "Start a server."),
    "cluster": ("", "Serve on several machines as one."),
    "status": ("server:status", "The server that OPBOX_URL names, and your sessions on it."),
    "doctor": ("doctor:doctor", "Measure the way to the server, and what limits a step."),
    "sessions": ("server:sessions", "List sessions, or end some."),
    "usage": ("server:usage", "What you used on each day, and your quotas."),
    "token": ("tokens:token", "Make tokens for a server, list or remove them."),
    "backup": ("backup:backup", "Back up a server's state directory while it runs."),
    "restore": ("backup:restore", "Put a backup into a state directory."),
    "models": ("models:models", "List the server's models; publish, load or remove one."),
    "datasets": ("datasets:datasets", "List the datasets on the server, or delete some."),
    "ops": ("server:ops", "List the operators, or describe one."),
    "dist": ("dist:dist", "Run a training by several workers."),
    "infer-shape": ("networks:infer_shape", "The shapes inside a saved symbol."),
    "summary": ("networks:summary", "The layers of a saved symbol, with their parameters."),
    "plot": ("networks:plot", "Draw a saved symbol to a file."),
    "run": ("networks:run", "Run a saved symbol, or one operator, on arrays."),
    "bench": ("networks:bench", "Time a saved symbol."),
    "lint": ("", "Run and check the operators of a file."),
    "gpu-selfcheck": ("gpu:selfcheck", "Compare a GPU's kernels with NumPy, and keep the verdict."),
    "completion": ("completion:completion", "Print the completion for a shell."),
}
"""Each subcommand's place, "module:function", and its line in the help; one without a place parses its own options."""


class Commands(click.Group):
    """A group whose subcommands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, function = COMMANDS[name][0].partition(":")
        if not module:
            return _with_its_own_options(name)
        command: click.Command = getattr(importlib.import_module(f"{__package__}.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of subcommands, of which none is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f": did you mean {near[0]}?" if near else ": see opbox --help"
            raise click.UsageError(f"expected a command, got {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


def _with_its_own_options(name: str) -> click.Command:
    """A command that gets all words after its name as they are."""

    @click.command(name, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def command(ctx: click.Context, words: tuple[str, ...]) -> None:
        ctx.exit((_lint if name == "lint" else _brought)(name, words))

    return command


def _lint(name: str, words: Sequence[str]) -> int:
    from ..lint import main as lint

    return lint(words)


def _brought(name: str, words: Sequence[str]) -> int:
    from importlib.metadata import entry_points  # a fifth of the time of --help, which has no need of it

    if name == "serve" and sys.stderr.isatty() and not {"-h", "--help"}.intersection(words):
        print("opbox serve: starting", file=sys.stderr, flush=True)  # its imports take a second or two
    for command in entry_points(group=BROUGHT, name=name):
        return int(command.load()(list(words)) or 0)
    raise click.ClickException(f"{name}: needs opbox-service: pip install 'opbox[server]'")


@click.group("opbox", cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="opbox", message="opbox %(version)s")
def opbox() -> None:
    """Operators over HTTP, with MXNet's Symbol API.

    OPBOX_URL and OPBOX_TOKEN name the server; without them the engine runs in this process, where opbox-service is
    installed. Every command but serve, dist and completion takes --json.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status, with the reason of a failure in a sentence on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(opbox.main(words, prog_name="opbox", standalone_mode=False) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "opbox"
        text = " ".join(error.format_message().split()).rstrip(".")
        print(
            f"{command}: {text}" + ("" if "?" in text or "see " in text else f": see {command} --help"), file=sys.stderr
        )
        return 2
    except click.ClickException as error:
        print(f"opbox {error.format_message()}", file=sys.stderr)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Whoever reads has seen enough (`opbox ops | head`); the interpreter must not flush into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if isinstance(error, FileNotFoundError) and error.filename:  # the system's, which is no sentence
            print(f"opbox: {error.filename}: expected a file, got a name that is not there", file=sys.stderr)
            return 1
        if not _is_a_sentence(error):
            raise
        print(f"opbox: {error}", file=sys.stderr)
        return 1


def _is_a_sentence(error: Exception) -> bool:
    """Return whether an error is for the user to read as it is: those of opbox, of files and of wrong values."""
    from opbox_protocol.errors import MXNetError

    return isinstance(error, MXNetError | OSError | ValueError)
