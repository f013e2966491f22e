"""Two or more captures: what changed, whether that is noise, and what accounts for it.

    align.py       where iterations begin and end, the same way in every capture
    sample.py      what each iteration was made of (whole.py: a capture without iterations)
    kernels.py     the same by kernel name
    noise.py       what chance alone makes of a difference of medians
    change.py      a figure's change, and the verdict
    notes.py       what else makes the captures differ
    run.py         the whole path; the file to read first
    conditions.py  --fail-if on changes
"""

from __future__ import annotations

from traceview.comparison.run import compare

__all__ = ["compare"]
