"""Texts of loops that load four elements before they use one, so that a device's memory always has work.

A thread that waits for each element moves half of what it could. `by_rows` goes along a row of `row_blocks`, `by_walk`
along a slice of `channel_slices`, `by_channel_rows` along one of `channel_rows`; all have an element's number `at`.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["by_channel_rows", "by_rows", "by_walk"]


def by_rows(
    reads: Mapping[str, str], body: str = "", *, end: str = "row.end", fours: str | None = None, none: str = "A(0)"
) -> str:
    """A loop over the elements i of a thread's row.

    Args:
        reads: names, and what each is of an element: an expression of `at` and i.
        body: what is done for each, with the names.
        end: where the loop ends.
        fours: in place of `body`: what is done with four, `name_of[4]`, of which `count` are there.
        none: what those are that are not there.
    """
    head = (
        f"for (unsigned base = row.first, place = row.start + row.first * inner, step = row.by * inner; base < {end}; "
        "base += 4 * row.by, place += 4 * step)"
    )
    first = f"const unsigned i = base + j * row.by, at = place + j * step;\n      const bool inside = i < {end};"
    return _loop(head, first, first, reads, body, fours, none=none)


def by_walk(reads: Mapping[str, str], body: str = "", *, fours: str | None = None) -> str:
    """A loop over the elements of a channel's slice, as `by_rows` has it, without i."""
    head = "for (Walk walk = walk_here(before, channels, after, slices); goes_on(walk);)"
    first = "const bool inside = inside_of[j] = goes_on(walk);\n      const unsigned at = at_of[j] = next(walk);"
    again = "const unsigned at = at_of[j];\n      const bool inside = inside_of[j];"
    return _loop(head, first, again, reads, body, fours, "    unsigned at_of[4];\n    bool inside_of[4];\n")


def by_channel_rows(reads: Mapping[str, str], body: str = "", *, fours: str | None = None, loads: int = 4) -> str:
    """A loop over the elements of a channel `c` in a slice's rows, as `by_rows` has it, without i.

    Args:
        loads: how many elements are loaded before one is used: also of `name_of` in `fours`.
    """
    head = f"for (unsigned k = slice * rows_at_once + row, by = slices * rows_at_once; k < rows; k += {loads} * by)"
    first = "const bool inside = k + j * by < rows;\n      const unsigned at = (k + j * by) * channels + c;"
    return _loop(head, first, first, reads, body, fours, count=loads)


def _loop(
    head: str,
    first: str,
    again: str,
    reads: Mapping[str, str],
    body: str,
    fours: str | None,
    more: str = "",
    none: str = "A(0)",
    count: int = 4,
) -> str:
    """The loop, where `first` has an element's place when it is loaded, and `again` when it is used."""
    unrolled = f"#pragma unroll\n    for (int j = 0; j < {count}; ++j)"
    names = "".join(f"    A {name}_of[{count}];\n" for name in reads)
    loads = "".join(f"      {name}_of[j] = inside ? {read} : {none};\n" for name, read in reads.items())
    start, counts = ("    int count = 0;\n", "      count += inside;\n") if fours is not None else ("", "")
    values = "".join(f"      const A {name} = {name}_of[j];\n" for name in reads)
    one = f"{unrolled} {{\n      {again}\n      if (!inside) continue;\n{values}      {body}\n    }}\n"
    return f"""  {head} {{
{more}{names}{start}{unrolled} {{
      {first}
{loads}{counts}    }}
{one if fours is None else fours}  }}
"""
