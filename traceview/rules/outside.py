"""The time of a run outside the counted iterations: notes, and what answers say of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import polars as pl

from traceview.intervals import clip, length, union
from traceview.measure.run import TORCH_PROFILER, ProgramCalls
from traceview.model.analysis import CAUSES, Analysis, DeviceUse
from traceview.model.names import title_name
from traceview.model.program import Program
from traceview.model.trace import Note, Trace, Window
from traceview.model.units import duration
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture
from traceview.pricing.ledger import GapClaim

MOSTLY = 0.5
COMPILED = ("cuda", "rust", "openacc", "openmp", "mpi")  # kinds of programs without a framework
MIN_OUTSIDE = 0.1  # share of the run; a shorter time outside the steady part is not worth a note


def outside_iterations(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft | Note]:
    """The time outside the counted iterations: start-up, warm-up and the end of the run.

    Symptom: the run is longer than its steady part.
    Cause: imports, CUDA initialization, model building, compilation, the first steps.
    Remedy: none needed for the steady part; capture only steady steps to leave it out of the capture.

    Findings of the steady part do not include it, so a note states it. With Analysis.whole, a finding claims all idle
    causes of the gaps that begin outside the steady part. `start_up` has what occurs once, and the time outside all
    gaps.
    """
    if capture.counted is None:
        return
    if not capture.analysis.whole:
        yield from _notes_outside(capture)
        return
    yield _draft_outside(device, "before_loop", slice(0, device.steady_gaps.start))
    yield _draft_outside(device, "after_loop", slice(device.steady_gaps.stop, len(device.gap_start)))


def is_lazy(program: Program) -> bool:
    """Return whether a program loads or compiles what it uses at the first call, for which its framework cares."""
    return program.python or program.kind not in COMPILED


def first_kernel(analysis: Analysis, devices: Collection[DeviceUse]) -> int:
    """Return the start of the first kernel of some devices, and without one that of their first work."""
    rows, kernels = [use.device for use in devices], ("compute", "communication")
    own = analysis.trace.operations.filter(pl.col("class").is_in(kernels), pl.col("device").is_in(rows))
    first: int | None = own["start"].min()  # type: ignore[assignment]
    work = min(use.window.start for use in devices)
    return work if first is None else max(first, work)


class TimeOutside(NamedTuple):
    """The time of the run before and after the counted iterations of all GPUs.

    `start` is the part of the first up to the first kernel, None if a GPU works for half of the first or longer. A
    trace of torch.profiler begins in the middle of a run, and has none.
    """

    before: Window
    after: Window
    start: Window | None


def time_outside(analysis: Analysis) -> TimeOutside | None:
    """Return the time outside the counted iterations; None where they are not at the same time on all GPUs."""
    run, steady = analysis.run, [use.steady.window for use in analysis.devices]
    begin, end = max((each.start for each in steady), default=0), min((each.end for each in steady), default=0)
    if begin >= end:
        return None
    before, first_work = Window(run.start, begin), min(use.window.start for use in analysis.devices)
    has_start = first_work - run.start > MOSTLY * before.length and analysis.info.profiler != TORCH_PROFILER
    start = Window(run.start, min(first_kernel(analysis, analysis.devices), begin))
    return TimeOutside(before, Window(end, run.end), start if has_start else None)


def start_words(analysis: Analysis, start: Window) -> str:
    """Return what the time before the first kernel is: start-up, if calls or a lazy program take most of it.

    Other programs may do their own work there.
    """
    part = f"{duration(start.length)} of the run of {duration(analysis.run.length)}"
    processes = {process for use in analysis.devices for process in use.process_ids}
    in_calls = int(ProgramCalls(analysis.trace, processes).inside(start)["ns"].sum())
    if is_lazy(analysis.program) or in_calls >= MOSTLY * start.length:
        return f"Start-up takes {part}"
    return f"{part} lie before the first kernel, mostly outside CUDA calls"


def outside_words(analysis: Analysis, outside: TimeOutside) -> str:
    """Return the time outside the counted iterations, and which part of it is the longest."""
    before, after, start = outside
    kernel, last = start.end if start else before.start, max(use.window.end for use in analysis.devices)
    parts = {
        "before the first kernel": kernel - before.start,
        "between the first kernel and them" if start else "before them": before.end - kernel,
        "between them and the last GPU work": last - after.start,
        "after the last GPU work": after.end - max(last, after.start),
    }
    most, whole = max(parts, key=parts.__getitem__), before.length + after.length
    part = f"{duration(whole)} of the run of {duration(analysis.run.length)} lie outside the counted iterations"
    longest = duration(parts[most])
    return f"{part}, {'nearly all' if longest == duration(whole) else longest} {most}"


def _notes_outside(capture: MeasuredCapture) -> Iterator[Note]:
    """Yield a note for the start and the end of the run, as long as on the device that has the most time there."""
    outside, run = time_outside(capture.analysis), capture.analysis.run
    if outside is None:
        return
    least, before, start = MIN_OUTSIDE * run.length, outside.before, outside.start
    if start is not None:
        if before.length >= least:
            yield Note("start_up", f"{start_words(capture.analysis, start)}. It is not shown; --whole includes it")
        before = Window(start.end, before.end)
    another, where = ("Another ", "between the first kernel and") if start else ("", "before")
    for note, window, words in (
        ("before_loop", before, f"lie {where} the counted iterations"),
        ("after_loop", outside.after, "lie after the counted iterations"),
    ):
        if window.length < least:
            continue
        mostly = ""
        if name := range_of(capture.trace, window):
            mostly = f", mostly in `{title_name(name)}`"
        elif _copying(capture.trace, window) > MOSTLY * window.length:
            mostly = ", mostly in copies"
        part = f"{another * (note == 'before_loop')}{duration(window.length)} of the run of {duration(run.length)}"
        yield Note(note, f"{part} {words}{mostly}. They are not shown; --whole includes them")


def range_of(trace: Trace, window: Window) -> str:
    """Return the name of the outermost range that covers most of a window and has most of its own time there, or ""."""
    inside = pl.min_horizontal("end", pl.lit(window.end)) - pl.max_horizontal("start", pl.lit(window.start))
    most = pl.max_horizontal(pl.lit(window.length), pl.col("end") - pl.col("start")) * MOSTLY
    names = trace.ranges.filter(inside > most).sort(inside, descending=True, maintain_order=True)["name"]
    return names[0] if len(names) else ""


def _copying(trace: Trace, window: Window) -> int:
    """Return the ns of a window in which data are copied."""
    copies = trace.operations.filter(pl.col("class") == "copy", pl.col("start") < window.end)
    start, end = (copies[name].to_numpy() for name in ("start", "end"))
    return length(clip(union(start, end, ordered=True), window.start, window.end))


def _draft_outside(device: GpuWork, name: str, gaps: slice) -> FindingDraft:
    ns = {cause: int(device.gaps.frame[cause][gaps].sum()) for cause in CAUSES}
    largest = [cause for cause in sorted(ns, key=lambda cause: -ns[cause])[:2] if ns[cause]]
    words = " and ".join(f"{duration(ns[cause])} `{cause}`" for cause in largest)
    values = {"causes": words or "for unknown causes"}
    return FindingDraft(name, device, (GapClaim(CAUSES, gaps),), values, same_everywhere=True)
