"""Where calls run: worker processes with their spawning, supervision and transport, or a pool of threads."""
