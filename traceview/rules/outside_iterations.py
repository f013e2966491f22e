"""The time outside the counted iterations: start-up, warm-up and the end of the run.

Symptom: the run is longer than its steady part.
Cause: imports, CUDA initialization, model building, compilation, the first steps.
Remedy: none needed for the steady part; capture only steady steps to leave it out of the capture.

Findings of the steady part do not include it, so a note states it. With Analysis.whole, a finding claims all idle
causes of the gaps that begin outside the steady part. `start_up` has what occurs once, and the time outside all gaps.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.analysis import CAUSES
from traceview.model.trace import Note
from traceview.model.units import duration, share
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim

MIN_OUTSIDE = 0.01  # share of the run; a shorter time outside the steady part is not worth a note
BEFORE, AFTER = "before the first counted iteration", "after the last counted iteration"


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft | Note]:
    """Yield the idle time before and after the steady part of a GPU, or notes on the time outside it."""
    if capture.counted is None:
        return
    if not capture.analysis.whole:
        yield from _notes(capture)
        return
    yield _draft(device, "before_loop", slice(0, device.steady_gaps.start))
    yield _draft(device, "after_loop", slice(device.steady_gaps.stop, len(device.gap_start)))


def _notes(capture: MeasuredCapture) -> Iterator[Note]:
    """Yield a note for the start and the end of the run, as long as on the device that has the most time there."""
    run, steady = capture.analysis.run, [use.steady.window for use in capture.analysis.devices]
    for name, title, when, length in (
        ("start_up", "Start-up", BEFORE, max(window.start for window in steady) - run.start),
        ("after_loop", "End", AFTER, run.end - min(window.end for window in steady)),
    ):
        if length >= MIN_OUTSIDE * run.length:
            yield Note(
                name,
                f"{title}: {duration(length)} {when} ({share(length, run.length)} of the run), not shown; --whole "
                "includes it",
            )


def _draft(device: GpuWork, name: str, gaps: slice) -> FindingDraft:
    ns = {cause: int(device.gaps.frame[cause][gaps].sum()) for cause in CAUSES}
    largest = [cause for cause in sorted(ns, key=lambda cause: -ns[cause])[:2] if ns[cause]]
    words = " and ".join(f"{duration(ns[cause])} `{cause}`" for cause in largest)
    return FindingDraft(name, device, (GapClaim(CAUSES, gaps),), {"causes": words or "for unknown causes"})


outside_iterations = Rule("outside_iterations", find)
