"""The figures of a program at its commits, and the commits where a figure changed (docs/ci.md "History")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeanFigure:
    """The mean of a figure over the iterations of a capture, in ns, and its standard error: None if it is unknown."""

    mean_ns: int
    error_ns: int | None


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """The figures of an iteration at a commit, by name. `iterations` is 1 if the capture counts as a whole."""

    commit: str
    file: str
    iterations: int
    figures: Mapping[str, MeanFigure]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A commit from which a figure has another level: the mean of the commits before it, and from it on."""

    figure: str
    commit: str
    before_ns: int
    after_ns: int


@dataclass(frozen=True, slots=True)
class History:
    """All commits, the oldest first, and the changes of their figures."""

    commits: tuple[CommitFigures, ...]
    changes: tuple[ChangePoint, ...]
