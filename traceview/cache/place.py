"""Where answers are kept: $TRACEVIEW_CACHE, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

OFF = "off"


def folder() -> Path | None:
    """Return the folder, which need not exist; None where keeping is turned off or there is no home."""
    chosen = os.environ.get("TRACEVIEW_CACHE", "")
    if chosen:
        return None if chosen == OFF else Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has a relative path ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "traceview"
    try:
        return Path.home() / ".cache" / "traceview"
    except RuntimeError:
        return None
