"""The GPU waits for the host in gaps that are too long for launch-bound.

Symptom: idle time with the cause `host`: the thread that launches the next work is not in a CUDA call. The innermost
NVTX range shows what it does.
Cause: data loading, collation, logging, Python code.
Remedy: workers and prefetching for data loading; in MPI, start the transfer earlier or fix the late rank; otherwise
move the work off the launching thread, or profile it.

Yields one finding for each of the three ranges with the longest waits, and one for the rest. Numbers in the names
of ranges are folded. Claims the idle cause `host` of the steady gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from traceview.intervals import Times
from traceview.measure.shared_work import launch_rows
from traceview.pricing.base import CaptureFacts, CapturePart, DevicePart, FindingDraft, Rule
from traceview.pricing.claims import STEADY, Collected, GapGroup, IdleClaim
from traceview.rules.launch_bound import MAX_SHORT_GAP

MAX_RANGES = 3
MIN_RANGE_SHARE = 0.01  # share of the steady time; ranges with a shorter wait belong to the rest
# Words in names of ranges. traceview.captures.redact keeps them, so that a redacted capture has the same findings.
DATA = re.compile(r"data|load|batch|fetch|next|input|collat|decod|augment|read|token|sampl", re.IGNORECASE)
NOT_DATA = "DataParallel"  # a name of PyTorch that contains "data" and does not mean loading
OPTIMIZER = re.compile(r"optim|adam|sgd", re.IGNORECASE)
MPI = re.compile(r"MPI_(?!File_)[A-Z]")


class _Sums(NamedTuple):
    """The ns of long waits by range name."""

    waits: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_Sums]:
    """Label the long waits for the host with the name of the range in which the host is."""
    waits = device.gap_waits(("host",), slice(None))
    if waits is None:
        return Collected(_Sums({}))
    steady = device.steady_gaps
    rows = np.flatnonzero(device.gap_end[steady] - device.gap_start[steady] > MAX_SHORT_GAP) + steady.start
    rows = rows[waits[rows] > 0]
    names, which = part.range_names(part.ranges_at(device.gap_thread[rows], _wait_middles(part, device, rows)))
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, which, waits[rows])
    return Collected(
        _Sums(dict(zip(names, totals.tolist(), strict=True))), {"long": GapGroup(rows, which, tuple(names))}
    )


def _wait_middles(part: CapturePart, device: DevicePart, rows: Times) -> Times:
    """Return the middle of each wait, from the start of the gap to the launch (to its end if that is unknown)."""
    trace = part.trace
    start, end, operation = device.gap_start[rows], device.gap_end[rows], device.gap_operation[rows]
    if trace.api.is_empty():
        return (start + end) // 2
    launch = launch_rows(trace.operations)
    call = np.where(operation >= 0, launch[operation], -1)
    until = np.where(call >= 0, np.clip(trace.api["start"].to_numpy()[call], start, end), end)
    middle: Times = (start + until) // 2
    return middle


def _decide(facts: CaptureFacts, sums: Mapping[int, _Sums]) -> Iterator[FindingDraft]:
    """Yield the ranges in which the GPU waits longest for the host, and the rest."""
    for device in facts.devices:
        if device.use.gaps.causes["host"] == 0:
            continue
        waits = sums[device.row].waits
        longest = sorted(((ns, name) for name, ns in waits.items()), reverse=True)
        minimum = MIN_RANGE_SHARE * device.steady.length
        dominant = [name for ns, name in longest if ns >= minimum and name]
        for name in dominant[:MAX_RANGES]:
            claim = IdleClaim(("host",), "long", frozenset((name,)))
            finding, case = _finding(name)
            yield FindingDraft(finding, device, (claim,), {"range": name}, case, key=name)
        rest = {"where": " outside any dominant NVTX range" if dominant else ""}
        yield FindingDraft("host_bound", device, (IdleClaim(("host",), STEADY),), rest, "elsewhere")


def _finding(name: str) -> tuple[str, str]:
    """Return the id of the finding on a wait in a range with this name, and the case of its texts."""
    if MPI.match(name):
        return "host_bound", "mpi"
    if DATA.search(name.replace(NOT_DATA, "")):
        return "data_loading", ""
    return "host_bound", "optimizer" if OPTIMIZER.search(name) else ""


host_bound = Rule("host_bound", _decide, _collect)
