"""The time outside the counted iterations: start-up, warm-up and the end of the run.

Symptom: the window of the device is longer than its steady part.
Cause: imports, CUDA initialization, model building, compilation, the first steps.
Remedy: none needed for the steady part; capture only steady steps to leave it out of the capture.

Findings of the steady part do not include it, so a note states it. With Analysis.whole, a finding claims all idle
causes of the gaps that begin outside the steady part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from traceview.model.analysis import CAUSES
from traceview.model.trace import Note
from traceview.model.units import duration, share
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Rule
from traceview.pricing.claims import Collected, GapGroup, IdleClaim

MIN_OUTSIDE = 0.01  # share of the window; a shorter time outside the steady part is not worth a note
BEFORE, AFTER = "before the first counted iteration", "after the last counted iteration"


class _Sums(NamedTuple):
    """The idle ns by cause of gaps before and after the steady part."""

    before: dict[str, int]
    after: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_Sums]:
    """Group the gaps outside the steady part, where findings cover the whole window."""
    if not part.analysis.whole:
        return Collected(_Sums({}, {}))
    gaps = (slice(0, device.steady_gaps.start), slice(device.steady_gaps.stop, len(device.gap_start)))
    sums = [{cause: int(device.use.gaps.frame[cause].to_numpy()[rows].sum()) for cause in CAUSES} for rows in gaps]
    return Collected(_Sums(*sums), dict(zip(("start_up", "after_loop"), map(GapGroup, gaps), strict=True)))


def _decide(facts: CaptureFacts, sums: Mapping[int, _Sums]) -> Iterator[FindingDraft | Note]:
    """Yield the idle time before and after the steady part of each device, or a note on its length."""
    if facts.counted is None or not facts.devices:
        return
    if not facts.analysis.whole:
        yield from _notes(facts)
        return
    for device in facts.devices:
        yield _draft(device, sums[device.row].before, "start_up")
        yield _draft(device, sums[device.row].after, "after_loop")


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


def _draft(device: DeviceFacts, sums: Mapping[str, int], name: str) -> FindingDraft:
    largest = sorted(sums, key=lambda cause: -sums[cause])[:2]
    parts = " and ".join(f"{duration(sums[cause])} `{cause}`" for cause in largest if sums[cause])
    return FindingDraft(name, device, (IdleClaim(CAUSES, name),), {"causes": parts or "for unknown causes"})


start_up = Rule("start_up", _decide, _collect)
