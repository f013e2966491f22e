"""Figures as text: three significant digits and the unit that fits, the same in findings, terminal, page and notes.

A figure that stands alone has its own unit: 780 ns, 12.0 µs, 331 ms, 7.17 s. The figures of a table column are compared
by eye, so `in_one_unit` gives them one unit and one number of decimals: the largest has three digits, or four if that
gives the smallest two. If the smallest still has fewer, each figure keeps its own unit. Shares have one decimal, so
that a column is aligned. Counts are whole, because a count is exact. The JSON holds integers of ns and bytes.

assets/core/words.js has the same rules; tests/units.json holds examples for both.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

UNKNOWN = "\ufffd"
Scales = tuple[tuple[float, str], ...]  # the largest unit first

TIMES: Scales = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
SIZES: Scales = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
RATES: Scales = ((1e3, "TB/s"), (1, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"))  # for bytes per ns
OPERATIONS: Scales = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1, "FLOP"))
WHOLE_UNITS = ("ns", "B", "FLOP")
LEAST = 9.5  # the smallest figure of a column in units of its last digit: two digits
ROUND_UP = 1 + 1e-12  # makes ties round away from zero, as JavaScript does


def duration(ns: float) -> str:
    """Return a length of time: `780 ns`, `12.0 µs`, `331 ms`, `7.17 s`, `1,280 s`."""
    return _with_unit(ns, TIMES) if ns else "0 ms"


def exact_duration(ns: int) -> str:
    """Return a time with all its digits, for a comparison with a bound: `30.000125 ms`."""
    if not ns:
        return duration(ns)
    scale, unit = _scale(ns, TIMES)
    digits = len(str(int(scale))) - 1
    text = f"{ns / scale:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {unit}"


def size(count: float) -> str:
    """Return bytes in the decimal units that bandwidths use: `512 B`, `1.50 MB`."""
    return _with_unit(count, SIZES)


def rate(count: float, ns: float) -> str:
    """Return bytes per time, `12.4 GB/s`; `-` where the time is 0."""
    return _with_unit(count / ns, RATES) if ns else "-"


def operations(count: float) -> str:
    """Return a number of floating-point operations: `7.21 TFLOP`."""
    return _with_unit(count, OPERATIONS)


def share(value: float, whole: float = 1) -> str:
    """Return a share: `12.3%`, `100%`, `<0.1%`; `-` where the whole is 0."""
    if not whole:
        return "-"
    percent = 100 * value / whole
    if 0 < abs(percent) < 0.05:
        return "<0.1%" if percent > 0 else ">-0.1%"
    return f"{percent * ROUND_UP:,.{1 if 0 < abs(percent) < 99.95 else 0}f}%"


def count(value: int) -> str:
    """Return a whole number, all its digits: `1,312`."""
    return f"{value:,}"


def number(value: float) -> str:
    """Return a mean of counts, with decimals only if it needs them: `1.10`, `300`."""
    return count(int(value)) if value == int(value) else ratio(value)


def ratio(value: float) -> str:
    """Return a number without a unit: `1.00`, `12.4`, `1,312`."""
    return f"{value * ROUND_UP:,.{_decimals(value)}f}"


def quantity(value: int, singular: str, plural: str | None = None) -> str:
    """Return `1 copy` or `1,312 copies`."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def verb(value: int, plural: str) -> str:
    """Return the verb of a quantity: `block`, or `blocks` for 1."""
    return plural + "s" * (value == 1)


def durations(values: Sequence[float | None]) -> list[str]:
    """Return the texts of a column of times; `-` for None."""
    return in_one_unit(values, TIMES)


def time_range(low: float, high: float) -> str:
    """Return both ends of a range of times, the unit once if they share it: `9.54 to 13.8 ms`."""
    first, last = duration(low), duration(high)
    return f"{first.removesuffix(last[last.index(' ') :])} to {last}"


def signed_duration(ns: float) -> str:
    """Return a difference of times with its sign: `+12.0 ms`, `-331 µs`, `0 ms`."""
    return f"{'+' if ns > 0 else ''}{duration(ns)}"


def _with_unit(value: float, scales: Scales) -> str:
    scale, unit = _scale(value, scales)
    return f"{f'{value:.0f}' if unit in WHOLE_UNITS else ratio(value / scale)} {unit}"


def _scale(value: float, scales: Scales) -> tuple[float, str]:
    """Return the largest unit in which the value is at least 1 with three digits; else the smallest."""
    return next((pair for pair in scales if abs(value) >= 0.9995 * pair[0]), scales[-1])


def _decimals(value: float) -> int:
    """Return the number of decimals that gives a value three significant digits."""
    return 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2


def in_one_unit(values: Sequence[float | None], scales: Scales) -> list[str]:
    """Return the texts of a table column, by the rules above; `-` for None."""
    lengths = [abs(value) for value in values if value]
    if not lengths:
        return ["-" if value is None else f"0 {'ms' if scales is TIMES else scales[-1][1]}" for value in values]
    scale, unit = _scale(max(lengths), scales)
    is_whole = unit in WHOLE_UNITS
    decimals = 0 if is_whole else _decimals(max(lengths) / scale)
    if not is_whole and min(lengths) / scale * 10**decimals < LEAST:
        decimals += 1
    if not is_whole and min(lengths) / scale * 10**decimals < LEAST:
        return ["-" if value is None else _with_unit(value, scales) if value else f"0 {unit}" for value in values]
    return [
        "-" if value is None else f"{value / scale * ROUND_UP:,.{decimals}f} {unit}" if value else f"0 {unit}"
        for value in values
    ]


def _printable(char: str) -> str:
    # Control, format (which can reverse a line) and surrogate characters are unsafe on a terminal.
    return " " if char.isspace() else UNKNOWN if unicodedata.category(char)[0] == "C" else char


def safe_text(text: str) -> str:
    """Return a text without control and format characters, except ends of lines."""
    return "\n".join(line if line.isprintable() else "".join(map(_printable, line)) for line in text.split("\n"))


def plain(name: str, longest: int = 60) -> str:
    """Return a name on one line, without control characters, shortened in the middle to `longest` characters."""
    safe = name if name.isprintable() else "".join(map(_printable, name))
    if len(safe) <= longest:
        return safe
    tail = longest // 3
    return f"{safe[: longest - tail - 1]}…{safe[-tail:]}"
