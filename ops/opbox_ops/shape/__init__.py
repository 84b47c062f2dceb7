"""Operators that move elements without computing on them: reshape, transpose, join, split, slice, tile, pad."""
