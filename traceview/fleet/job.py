"""What every worker needs to know beside the report."""

from __future__ import annotations

from dataclasses import dataclass

from traceview.read.limits import DEFAULT_MAX_DECODED


@dataclass(frozen=True, slots=True)
class Job:
    """The pattern of iterations, how many to skip, which nsys to call (None: as analyze would), and --max-decoded."""

    iteration: str | None = None
    skip: int | None = None
    nsys: str | None = None
    max_decoded: int = DEFAULT_MAX_DECODED
