"""Attacks on a live server, beside a user who behaves well: `make attack` runs all and prints what each came to."""
