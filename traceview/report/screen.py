"""Figures and names as text for people: on a terminal of any width, letters and colours, and as GitHub's Markdown.

East Asian letters take two columns. The colours are those of the page. In Markdown, no text and no name is markup.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from traceview.model.catalogue import read_toml
from traceview.model.columns import Unit
from traceview.model.program import Program
from traceview.model.units import (
    RATES,
    SIZES,
    TIMES,
    Scales,
    count,
    durations,
    in_one_unit,
    operations,
    plain,
    quantity,
    ratio,
    share,
)

WIDTH = 80
MAX_LINES = 30  # length of a summary without --verbose
MAX_DOUBTS = 2  # notes on figures in doubt that a summary has in words
MIN_WORD = 8  # columns; shorter pieces of a word are not readable
PAGE_LINES = 1  # the path of the page, which follows it
# The classes of the page by their character in a bar, and the severities; assets/core/palette.css has the same values.
CLASS_COLOURS = {"█": "#0072b2", "▓": "#aa4499", "▒": "#8c6d46", "░": "#a8a8a8"}
SEVERITY_COLOURS = {"high": "#b3261e", "medium": "#9a5b00"}  # "low" has none
CUBE = (0, 95, 135, 175, 215, 255)  # the steps of red, green and blue in colours 16 to 231 of 256
RUNS = re.compile("|".join(f"{mark}+" for mark in CLASS_COLOURS))
SEVERITY = re.compile(rf"(?<=^   )({'|'.join(SEVERITY_COLOURS)})\b")
IN_ASCII = str.maketrans("█▓▒░·…µ×–—→", "#Cc.-~ux-->") | str.maketrans({"±": "+-"})
LETTERS = "█▓▒░·…µ→±"  # what a summary writes beside ASCII


def width(text: str) -> int:
    """Return the width of a text in terminal columns."""
    return len(text) if text.isascii() else sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _head(text: str, columns: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += _columns(char)
        if used > columns:
            return text[:index]
    return text


def middle(text: str, columns: int) -> str:
    """Shorten a text to `columns` with `…` in its middle: similar names differ at both ends."""
    if width(text) <= columns:
        return text
    head = _head(text, columns // 2)
    tail = _head(text[::-1], columns - 1 - width(head))[::-1]
    return f"{head}…{tail}"


def short_names(names: Sequence[str], columns: int) -> list[str]:
    """Shorten names in the middle to `columns`; names that would look equal are cut where they begin to differ."""
    short = _distinct_forms(list(dict.fromkeys(names)), columns)
    return [short[name] for name in names]


def _distinct_forms(names: list[str], columns: int, hidden: int = 0) -> dict[str, str]:
    """Return a short form of each name without its first `hidden` characters, which are the same in all."""
    short = {name: middle(("…" if hidden else "") + name[hidden:], columns) for name in names}
    for form in [form for form, times in Counter(short.values()).items() if times > 1]:
        alike = [name for name in names if short[name] == form]
        start = _common_length(alike) - columns // 4
        if start > hidden:
            short |= _distinct_forms(alike, columns, start)
    return short


def _common_length(names: Sequence[str]) -> int:
    """Return the number of letters with which all names begin."""
    equal = [len(set(letters)) == 1 for letters in zip(*names, strict=False)]
    return next((place for place, same in enumerate(equal) if not same), len(equal))


def left(text: str, columns: int) -> str:
    """Shorten a text in its middle or pad it on the right, to exactly `columns`."""
    short = middle(text, columns)
    return short + " " * (columns - width(short))


def room(names: Sequence[str], least: int, columns: int) -> int:
    """Return the width of a column of names: what they need, from `least` to that and what exceeds WIDTH."""
    return min(max(least, *map(width, names), 0), least + max(columns - WIDTH, 0))


def wrap(text: str, first: str = "", rest: str = "", columns: int = WIDTH) -> list[str]:
    """Break a text at spaces into lines of at most `columns`; break a longer word anywhere."""
    lines, line = [], first
    empty = True  # the line holds only its indentation
    for word in _words(text, max(columns - max(width(first), width(rest)), MIN_WORD)):
        if not empty and width(line) + 1 + width(word) > columns:
            lines.append(line)
            line, empty = rest, True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line.rstrip()]


def bulleted(texts: Iterable[str], columns: int) -> list[str]:
    """Return the lines of a list of texts."""
    return [line for text in texts for line in wrap(text, "  - ", "    ", columns)]


def note_lines(texts: Iterable[str], columns: int) -> list[str]:
    """Return the lines of notes below the tables of a summary."""
    return [line for text in texts for line in wrap(f"Note: {text}", "  ", "    ", columns)]


def more_lines(more: str, columns: int) -> list[str]:
    """Return the last lines of a summary: what --verbose adds."""
    return wrap(f"More with -v: {more}", "  ", "    ", columns)


def fitting_notes(doubts: Sequence[str], others: Iterable[str], free: int, columns: int) -> list[str]:
    """Return the notes of a summary: the first doubt, and further ones and others as far as they fit into `free` lines.

    At most MAX_DOUBTS doubts.
    """
    chosen = list(doubts[:1])
    for text in (*doubts[1:MAX_DOUBTS], *others):
        if len(note_lines([*chosen, text], columns)) <= free:
            chosen.append(text)
    if more := len(set(doubts) - set(chosen)):
        chosen.append(f"{quantity(more, 'more note')} on figures in doubt: -v")
    return chosen


def _folded(line: str, columns: int) -> Iterator[str]:
    """Yield a line in pieces of at most `columns`, with its spaces: what no layout made fit."""
    margin = " " * min(len(line) - len(line.lstrip()) + 2, columns // 2)
    while width(line) > columns:
        head = _head(line, columns + 1)
        at = head.rfind(" ")
        at = at if head[:at].strip() else len(_head(line, columns))
        yield line[:at].rstrip()
        line = margin + line[at:].lstrip()
    yield line


def _words(text: str, longest: int) -> Iterator[str]:
    for word in text.split():
        while width(word) > longest:
            head = _head(word, longest)
            yield head
            word = word[len(head) :]
        yield word


def part_lines(parts: Sequence[tuple[str, int]], whole: int, name: int, time: int = 11) -> list[str]:
    """Return a line for each part of a time: name, ns and share of the whole. `name` and `time` are widths."""
    times = durations([ns for _, ns in parts])
    return [
        f"  {words:<{name}}{text:>{time}}{share(ns, whole):>8}" for (words, ns), text in zip(parts, times, strict=True)
    ]


def code_lines(code: str, indent: str, columns: int = WIDTH) -> Iterator[str]:
    """Yield code in lines that fit: move comments above their line, continue long lines after a backslash."""
    for source in code.splitlines():
        if width(indent + source) <= columns:
            yield indent + source
            continue
        margin = indent + source[: len(source) - len(source.lstrip())]
        statement, mark, comment = f" {source.strip()}".partition(" # ")
        if mark:
            yield from wrap(comment, f"{margin}# ", f"{margin}# ", columns)
        if statement.strip():
            yield from _continued(statement.strip(), margin, columns)


def _continued(statement: str, margin: str, columns: int) -> Iterator[str]:
    lines = wrap(statement, margin, margin + "    ", columns - 2)
    yield from (f"{line} \\" for line in lines[:-1])
    yield lines[-1]


class Screen(NamedTuple):
    """A terminal. `colours` is 0, 256 or 2**24; without `unicode` it prints ASCII."""

    columns: int = WIDTH
    unicode: bool = True
    colours: int = 0

    def text(self, parts: Iterable[Sequence[str]]) -> str:
        """Return parts of lines as text, an empty line between them; a line that is too long takes several."""
        return self._finished(self._spaced(parts))

    def brief(self, parts: Iterable[Sequence[str]], more: str, most: int = 0, notes: Sequence[str] = ()) -> str:
        """Return at most `most` lines: as many of the parts as fit, all notes, and what --verbose adds.

        By default, MAX_LINES of WIDTH.
        """
        most = most or MAX_LINES * WIDTH // min(self.columns, WIDTH)
        last = self._spaced([[*note_lines(notes, self.columns), *more_lines(more, self.columns)]])
        lines, free = self._spaced(parts), most - len(last) - 1
        if len(lines) > free:
            lines = [*lines[: free - 1], f"  and {len(lines) - free + 1} more lines with -v"]
        return self._finished([*lines, "", *last])

    def _spaced(self, parts: Iterable[Sequence[str]]) -> list[str]:
        spaced = [line for part in parts if part for line in (*part, "")][:-1]
        return [piece for line in spaced for piece in _folded(line, self.columns)]

    def _finished(self, lines: Sequence[str]) -> str:
        text = "\n".join(map(self._inked, lines) if self.colours else lines).rstrip() + "\n"
        return text if self.unicode else text.translate(IN_ASCII).encode("ascii", "replace").decode("ascii")

    def _inked(self, line: str) -> str:
        """Return a line with its headings in bold, and its bars and severities in their colours."""
        if line and not line.startswith(" "):
            return f"\033[1m{line}\033[0m"
        line = SEVERITY.sub(lambda word: self._ink(word[0], SEVERITY_COLOURS[word[0]]), line)
        return RUNS.sub(lambda run: self._ink(run[0], CLASS_COLOURS[run[0][0]]), line)

    def _ink(self, text: str, colour: str) -> str:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        if self.colours > 256:
            return f"\033[38;2;{red};{green};{blue}m{text}\033[0m"
        steps = [min(range(6), key=lambda step: abs(CUBE[step] - value)) for value in (red, green, blue)]
        index = 16 + 36 * steps[0] + 6 * steps[1] + steps[2]
        return f"\033[38;5;{index}m{text}\033[0m"


PLAIN = Screen()


SCALES: dict[str, Scales] = {"ns": TIMES, "bytes": SIZES, "bytes_per_ns": RATES}
WRITERS: dict[str, Callable[[Any], str]] = {
    "fraction": share,
    "ratio": ratio,
    "count": count,
    "flag": lambda value: "yes" if value else "no",
    "flops": operations,
    "flops_per_s": lambda value: f"{operations(value)}/s",
}
WORDS: Mapping[str, Mapping[str, str]] = read_toml(Path(__file__).with_name("words.toml"))
CAUSE_WORDS, STATE_WORDS = WORDS["causes"], WORDS["states"]


def cause_words(program: Program) -> Mapping[str, str]:
    """Return the words for the causes of idle time. The calls of AMD's GPUs are HIP's."""
    calls = "CUDA" if program.nvidia else "HIP"
    return {cause: text.replace("CUDA", calls) for cause, text in CAUSE_WORDS.items()}


def confidence_word(confidence: float) -> str:
    """Return how sure a result from 0 to 1 is, as a word."""
    return "high" if confidence >= 0.9 else "medium" if confidence >= 0.8 else "low"


def figure(value: Any, unit: Unit) -> str:
    """Return a figure of a declared column as text; `-` where it is undefined."""
    return figures([value], unit)[0]


def figures(values: Sequence[Any], unit: Unit) -> list[str]:
    """Return the texts of a declared column: times, bytes and rates in one unit (model/units.py), `-` if undefined."""
    if unit in SCALES:
        return in_one_unit(values, SCALES[unit])
    write = WRITERS.get(unit, str)
    return ["-" if value is None else write(value) for value in values]


SPECIAL = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>#|~@&"})
# GitHub makes links of addresses and references, escaped or not, unless a comment divides them.
LINK = re.compile(r"((?:https?|ftp|mailto|xmpp)(?=:)|www(?=\.)|\bgh(?=-)|[@#](?=\w))", re.IGNORECASE)
DIVIDER = "<!-- -->"


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a table; the cells are Markdown."""
    return f"| {' | '.join(cells)} |"


def markdown_text(text: str) -> str:
    """Return a text on one line in which markup, links and references are only text."""
    return LINK.sub(rf"\1{DIVIDER}", plain(text, 2000).translate(SPECIAL))


def markdown_code(name: str) -> str:
    """Return a name as a code span, with pipes escaped: a pipe ends a table cell even in a code span."""
    return f"`{plain(name, 80).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
