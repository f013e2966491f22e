"""The time outside the counted iterations: start-up, warm-up and the end of the run.

Symptom: the window of the device is longer than its steady part.
Cause: imports, CUDA initialization, model building, compilation, the first steps.
Remedy: none needed for the steady part; capture only steady steps to leave it out of the capture.

Findings of the steady part do not include it, so a note states it. With Analysis.whole, a finding claims all idle
causes of the gaps that begin outside the steady part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times
from traceview.model.devices import CAUSES
from traceview.model.trace import Note
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.ledger import IdleClaim
from traceview.rules.advice.host import START_UP
from traceview.units import duration, share

MIN_OUTSIDE = 0.01  # share of the window; a shorter time outside the steady part is not worth a note
BEFORE, AFTER = "before the first counted iteration", "after the last counted iteration"


def start_up(facts: CaptureFacts) -> Iterator[FindingDraft | Note]:
    """Yield the idle time before and after the steady part of each device, or a note on its length."""
    if facts.counted is None or not facts.devices:
        return
    if not facts.analysis.whole:
        yield from _notes(facts)
        return
    for device in facts.devices:
        before = device.own_gaps(np.arange(device.steady_gaps.start))
        after = np.arange(device.steady_gaps.stop, len(device.gap_start))
        yield _draft(facts, device, before, "start_up", BEFORE)
        yield _draft(facts, device, after, "after_loop", AFTER)


def _notes(facts: CaptureFacts) -> Iterator[Note]:
    """Yield a note for the start and the end of the capture, with the device that has the most time there."""
    uses = facts.analysis.devices
    for name, title, when, lengths in (
        ("start_up", "Start-up", BEFORE, [use.steady.window.start - use.window.start for use in uses]),
        ("after_loop", "End", AFTER, [use.window.end - use.steady.window.end for use in uses]),
    ):
        longest = max(range(len(uses)), key=lengths.__getitem__)
        whole = uses[longest].window.length
        if lengths[longest] >= MIN_OUTSIDE * whole:
            yield Note(
                name,
                f"{title}: {duration(lengths[longest])} {when} ({share(lengths[longest], whole)} of the window of "
                f"{uses[longest].id}), not shown; --whole includes it",
            )


def _draft(facts: CaptureFacts, device: DeviceFacts, rows: Times, name: str, when: str) -> FindingDraft:
    sums = {cause: int(device.use.gaps.frame[cause].to_numpy()[rows].sum()) for cause in CAUSES}
    sums = device.shown(name, sums)
    largest = sorted(sums, key=lambda cause: -sums[cause])[:2]
    parts = " and ".join(f"{duration(sums[cause])} `{cause}`" for cause in largest if sums[cause])
    fix = START_UP.choose(facts.program)
    return FindingDraft(
        id=name,
        device=device,
        title=f"The GPU is idle for {{cost}} {when}, mostly {parts or 'for unknown causes'}",
        advice=fix.advice,
        claims=(IdleClaim(CAUSES, rows=rows),),
        code=fix.code,
        place_label="outside the counted iterations",
    )
