"""Operators that draw random numbers, all from the context's seeded source: the same seed gives the same numbers."""
