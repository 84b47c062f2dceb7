"""Worker pools: processes with their spawning, supervision and transport, or threads."""
