"""Operators for opbox, one a file; loaded through the entry point `opbox.ops`."""
