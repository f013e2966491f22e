"""Regular expressions that users, settings and agents give, searched in the names of a capture in bounded time.

The engine does not backtrack: an expression takes time in proportion to the length of the names. A large one takes
long for each character, so the search stops after MAX_SECONDS.
"""

from __future__ import annotations

import re
from itertools import pairwise
from time import monotonic

import numpy as np
import polars as pl

from traceview.errors import RequestError

MAX_LENGTH = 1_000  # characters of an expression
MAX_SHOWN = 80  # characters of an expression in an error
MAX_SECONDS = 10.0
SEARCHED_AT_ONCE = 1 << 16  # bytes of names between two looks at the clock
REASON = re.compile(r"^error: (.*)$", re.MULTILINE)


def check_pattern(pattern: str, where: str) -> None:
    """Check that a regular expression can be searched. Raises RequestError, which begins with `where`."""
    _search(pl.Series([""]), pattern, where)


def names_with_match(names: pl.Series, pattern: str, where: str) -> pl.Series:
    """Return the distinct names that contain a match of a regular expression.

    Raises RequestError, which begins with `where`, if it cannot be searched.
    """
    distinct = names.drop_nulls().unique(maintain_order=True)
    part = distinct.str.len_bytes().cum_sum() // SEARCHED_AT_ONCE
    edges = np.flatnonzero(np.diff(part.to_numpy(), prepend=-1, append=-1)).tolist()
    began, matches = monotonic(), [distinct.clear()]
    for first, last in pairwise(edges):
        if monotonic() - began > MAX_SECONDS:
            raise RequestError(f"{where} {_shown(pattern)} takes more than {MAX_SECONDS:.0f} s; simplify it")
        searched = distinct[first:last]
        matches.append(searched.filter(_search(searched, pattern, where)))
    return pl.concat(matches)


def _search(names: pl.Series, pattern: str, where: str) -> pl.Series:
    if len(pattern) > MAX_LENGTH:
        raise RequestError(f"{where} has {len(pattern)} characters; an expression has at most {MAX_LENGTH}")
    try:
        return names.str.contains(pattern)
    except pl.exceptions.ComputeError as error:
        reason = REASON.findall(str(error)) or ["it is too large"]
        raise RequestError(
            f"{where} {_shown(pattern)} is not a regular expression that can be searched ({reason[-1]}); put a "
            "backslash before a character with a special meaning, and use neither look-around nor backreferences"
        ) from None


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= MAX_SHOWN else f"{pattern[:MAX_SHOWN]}…")
