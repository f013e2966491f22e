"""The time outside the counted iterations: start-up, warm-up and the end of the run.

Symptom: the run is longer than its steady part.
Cause: imports, CUDA initialization, model building, compilation, the first steps.
Remedy: none needed for the steady part; capture only steady steps to leave it out of the capture.

Findings of the steady part do not include it, so a note states it. With Analysis.whole, a finding claims all idle
causes of the gaps that begin outside the steady part. `start_up` has what occurs once, and the time outside all gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from traceview.model.analysis import CAUSES
from traceview.model.trace import Note
from traceview.model.units import duration, share
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, GapGroup, IdleClaim

MIN_OUTSIDE = 0.01  # share of the run; a shorter time outside the steady part is not worth a note
BEFORE, AFTER = "before the first counted iteration", "after the last counted iteration"


class _OutsideIterationsSums(NamedTuple):
    """The idle ns by cause of gaps before and after the steady part."""

    before: dict[str, int]
    after: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_OutsideIterationsSums]:
    """Group the gaps outside the steady part, where findings cover the whole window."""
    if not part.analysis.whole:
        return Collected(_OutsideIterationsSums({}, {}))
    gaps = (slice(0, device.steady_gaps.start), slice(device.steady_gaps.stop, len(device.gap_start)))
    sums = [{cause: int(device.gaps.frame[cause].to_numpy()[rows].sum()) for cause in CAUSES} for rows in gaps]
    return Collected(
        _OutsideIterationsSums(*sums), dict(zip(("before_loop", "after_loop"), map(GapGroup, gaps), strict=True))
    )


def _decide(facts: CaptureFacts, sums: Mapping[int, _OutsideIterationsSums]) -> Iterator[FindingDraft | Note]:
    """Yield the idle time before and after the steady part of each device, or a note on its length."""
    if facts.counted is None or not facts.devices:
        return
    if not facts.analysis.whole:
        yield from _notes(facts)
        return
    for device in facts.devices:
        yield _draft(device, sums[device.row].before, "before_loop")
        yield _draft(device, sums[device.row].after, "after_loop")


def _notes(facts: CaptureFacts) -> Iterator[Note]:
    """Yield a note for the start and the end of the run, as long as on the device that has the most time there."""
    run, parts = facts.analysis.run, [use.steady.window for use in facts.analysis.devices]
    for name, title, when, length in (
        ("start_up", "Start-up", BEFORE, max(part.start for part in parts) - run.start),
        ("after_loop", "End", AFTER, run.end - min(part.end for part in parts)),
    ):
        if length >= MIN_OUTSIDE * run.length:
            yield Note(
                name,
                f"{title}: {duration(length)} {when} ({share(length, run.length)} of the run), not shown; --whole "
                "includes it",
            )


def _draft(device: DeviceFacts, sums: Mapping[str, int], name: str) -> FindingDraft:
    largest = sorted(sums, key=lambda cause: -sums[cause])[:2]
    parts = " and ".join(f"{duration(sums[cause])} `{cause}`" for cause in largest if sums[cause])
    return FindingDraft(name, device, (IdleClaim(CAUSES, name),), {"causes": parts or "for unknown causes"})


outside_iterations = OldRule("outside_iterations", _decide, _collect, place=180)
