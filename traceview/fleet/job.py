"""What every worker is told beside the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """The iterations' pattern, how many to skip, and which nsys to call; None: as analyze would."""

    iteration: str | None = None
    skip: int | None = None
    nsys: str | None = None
