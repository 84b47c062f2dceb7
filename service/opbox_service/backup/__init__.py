"""Backups of a state directory: an archive of what it has, made while servers run, and its way back."""
