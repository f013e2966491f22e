"""A terminal that a summary is for: its width, letters and colours. Python's colours are those of the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceview.report.layout import WIDTH, cut

MAX_LINES = 25  # length of a summary without --verbose
PAGE_LINES = 2  # an empty line and the path of the page, which follow it
# The classes of the page by their character in a bar, and the severities; assets/core/palette.css has the same values.
CLASS_COLOURS = {"█": "#0072b2", "▓": "#aa4499", "▒": "#8c6d46", "░": "#a8a8a8"}
SEVERITY_COLOURS = {"high": "#b3261e", "medium": "#9a5b00"}  # "low" has none
CUBE = (0, 95, 135, 175, 215, 255)  # the steps of red, green and blue in colours 16 to 231 of 256
RUNS = re.compile("|".join(f"{mark}+" for mark in CLASS_COLOURS))
SEVERITY = re.compile(rf"(?<=^   )({'|'.join(SEVERITY_COLOURS)})\b")
IN_ASCII = str.maketrans(
    {
        "█": "#",
        "▓": "C",
        "▒": "c",
        "░": ".",
        "·": "-",
        "…": "~",
        "µ": "u",
        "×": "x",
        "–": "-",
        "—": "-",
        "→": ">",
        "±": "+-",
    }
)
LETTERS = "█▓▒░·…µ→±"  # what a summary writes beside ASCII


@dataclass(frozen=True, slots=True)
class Screen:
    """A terminal. `colours` is 0, 256 or 2**24; without `unicode` it prints ASCII."""

    columns: int = WIDTH
    unicode: bool = True
    colours: int = 0

    def text(self, parts: Iterable[Sequence[str]]) -> str:
        """Return parts of lines as text, an empty line between them, each line cut to the width."""
        return self._finished(_spaced(parts))

    def brief(self, parts: Iterable[Sequence[str]], more: str, most: int = MAX_LINES) -> str:
        """Return at most `most` lines of the parts; the last line says what --verbose adds."""
        lines = _spaced(parts)
        if len(lines) > most - 2:
            lines = [*lines[: most - 3], f"  and {len(lines) - most + 3} more lines"]
        return self._finished([*lines, "", f"  More with -v: {more}"])

    def _finished(self, lines: Sequence[str]) -> str:
        cut_lines = [cut(line, self.columns) for line in lines]
        text = "\n".join(map(self._inked, cut_lines) if self.colours else cut_lines).rstrip() + "\n"
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


def _spaced(parts: Iterable[Sequence[str]]) -> list[str]:
    return [line for part in parts if part for line in (*part, "")][:-1]


PLAIN = Screen()
