"""The `opbox` command: one file for each kind of subcommand, loaded when the subcommand is called.

    opbox serve --port 8000                      a server
    opbox status --live                          the server that OPBOX_URL names, and its sessions
    opbox ops Convolution                        what an operator computes and takes
    opbox run net-symbol.json data=image.npy --params net-0010.params

`commands` has the table of them all, `output` says how they print; `server`, `networks` and `completion` are what they
do.
"""

from .commands import main

__all__ = ["main"]
