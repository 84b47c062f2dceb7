"""`opbox completion SHELL`: what a shell is to read for completing this command's words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion for a shell: `eval "$(opbox completion bash)"` in its start-up file."""
    complete = get_completion_class(shell)
    assert complete is not None
    print(complete(ctx.find_root().command, {}, "opbox", "_OPBOX_COMPLETE").source())
