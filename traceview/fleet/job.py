"""What every worker needs to know beside the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traceview.read.limits import DEFAULT_MAX_DECODED


@dataclass(frozen=True, slots=True)
class Job:
    """The pattern of iterations, how many to skip, which nsys to call (None: as analyze would), and --max-decoded."""

    iteration: str | None = None
    skip: int | None = None
    nsys: str | None = None
    max_decoded: int = DEFAULT_MAX_DECODED


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM files of a cluster's authority, and of this client's certificate and key (None: in the same file)."""

    ca_file: Path
    cert: Path
    key: Path | None = None
