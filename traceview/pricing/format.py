"""How rules write figures: one way, so that every finding reads alike."""

from __future__ import annotations

import re

NUMBER = re.compile(r"-?\d+(?![A-Za-z])")


def duration(ns: float) -> str:
    """Return a time with three digits and its unit: "331 ms", "12.4 µs", "6.32 s"."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def size(count: float) -> str:
    """Return a number of bytes with three digits and its decimal unit."""
    for unit, power in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= power:
            return f"{_three_digits(count / power)} {unit}"
    return f"{count:.0f} bytes"


def share(part: float, whole: float) -> str:
    """Return a share in per cent; 0% where there is no whole."""
    return f"{_three_digits(100 * part / whole) if whole > 0 else '0'}%"


def rate(count: int, ns: int) -> str:
    """Return bytes over ns as GB/s (a byte per ns is a GB/s)."""
    return f"{_three_digits(count / ns)} GB/s" if ns > 0 else "no measurable rate"


def many(count: int, one: str, more: str | None = None) -> str:
    """Return "1 copy" or "1,312 copies"."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def listed(words: list[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def folded(name: str) -> str:
    """Return a range's name with its numbers folded together: `layer7` → `layer#`; `h2d` stays."""
    return NUMBER.sub("#", name)


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
