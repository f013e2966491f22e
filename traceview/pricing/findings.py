"""What the findings of a capture rest on: open ledgers, doubts, and equal findings of several devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from traceview import intervals
from traceview.intervals import BEFORE_ALL, Intervals
from traceview.model.findings import Finding
from traceview.model.trace import Note
from traceview.pricing.accounts import COMMUNICATION, MEMSET, own_compute
from traceview.pricing.base import DevicePart, FindingDraft
from traceview.pricing.claims import ComputeClaim, IdleClaim
from traceview.pricing.ledger import Ledger
from traceview.units import SIZES, TIMES

NOT_COPIES = (COMMUNICATION, MEMSET)
ALIKE = 0.5  # share of the highest cost; a device with less has another problem, such as a slow rank
UNITS = "|".join(unit for _, unit in (*TIMES, *SIZES))
FIGURE = re.compile(rf"\d[\d.,]*(?: ?(?:{UNITS}|%)(?!\w))?")  # a number with its unit in a title


class PricedFinding(NamedTuple):
    """A finding with its title before the place of the host, and FindingDraft.same_everywhere."""

    finding: Finding
    title: str
    same_everywhere: bool


def join_devices(priced: Sequence[PricedFinding]) -> Iterator[Finding]:
    """Join findings that differ in the device and in figures alone, and cost at least ALIKE of the costliest one.

    The place may differ too if the remedy is the same everywhere.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding, title, same_everywhere in priced:
        place = finding.host and finding.host.stack and finding.host.stack[finding.host.own]
        base: tuple[object, ...] = (finding.id, FIGURE.sub("#", finding.title), place)
        if same_everywhere:
            base = (finding.id, FIGURE.sub("#", title))
        number = 0
        while not _joins(finding, groups.get((*base, number), ())):
            number += 1
        groups.setdefault((*base, number), []).append(finding)
    for first, *others in groups.values():
        yield replace(first, others=tuple(others))


def _joins(finding: Finding, group: Sequence[Finding]) -> bool:
    """Return whether a finding can join a group, whose first finding is the costliest."""
    if any(other.device == finding.device for other in group):
        return False
    return not group or decisive_cost(finding) >= ALIKE * decisive_cost(group[0])


def decisive_cost(finding: Finding) -> int:
    """Return the cost that findings are ordered by: without the profiler if that is known."""
    return finding.cost_ns if finding.unprofiled_cost_ns is None else finding.unprofiled_cost_ns


class EndOfWork(NamedTuple):
    """Until when exposed work and idle time of a device count as lost."""

    exposed: int
    idle: int


def open_ledger(device: DevicePart, exposed: Mapping[str, Intervals], until: EndOfWork | None) -> Ledger:
    """Open the accounts of the time that a device lost. Time after the end of its work is not lost."""
    ends = until or (None, None)
    return Ledger.from_gaps(device.use.gaps, exposed, own_compute(device.activity), *ends)


class WorkEnds(NamedTuple):
    """The last end of kernels and of copies that nothing hides, and the ns of such copies and of compute."""

    kernel: int
    copy: int
    copying_ns: int
    compute_ns: int


def work_ends(device: DevicePart, exposed: Mapping[str, Intervals]) -> WorkEnds:
    """Return the ends of a device's work. Migrations of managed memory and memsets are not the program's work."""
    work = device.activity
    copying = [times for key, times in exposed.items() if key not in NOT_COPIES and not key.startswith("um_")]
    kernels, copies = (
        max((int(times.end[-1]) for times in unions if len(times.end)), default=BEFORE_ALL)
        for unions in ((work.compute, work.communication), copying)
    )
    return WorkEnds(kernels, copies, sum(map(intervals.length, copying)), intervals.length(work.compute))


def end_of_work(parts: Sequence[WorkEnds]) -> EndOfWork | None:
    """Return until when time counts as lost; None if the device runs neither kernels nor such copies.

    `parts` are those of one device in each slice of a capture. Work counts until the last kernel; if copies take longer
    than compute, until the last copy or kernel. Idle time counts until both, because the host keeps a copy of results
    waiting.
    """
    is_copying = sum(part.copying_ns for part in parts) > sum(part.compute_ns for part in parts)
    kernel, copy = (max((part[column] for part in parts), default=BEFORE_ALL) for column in range(2))
    last = max(kernel, copy) if is_copying else kernel
    return None if last == BEFORE_ALL else EndOfWork(last, max(kernel, copy))


def stated_doubt(draft: FindingDraft, doubts: Sequence[Note]) -> str | None:
    """Return the first statement of a note that affects the finding or the time that it claims; None without one."""
    words = {draft.id, "findings"}
    for claim in draft.claims:
        if isinstance(claim, IdleClaim):
            words |= {"idle", *(f"idle.{cause}" for cause in claim.causes)}
        elif isinstance(claim, ComputeClaim):
            words.add("compute")
        else:
            words |= {COMMUNICATION if key == COMMUNICATION else "copies" for key in claim.keys}
    text = next((note.text for note in doubts if not words.isdisjoint(note.affects)), None)
    return None if text is None else re.split(r"[:;.] ", text, maxsplit=1)[0]
