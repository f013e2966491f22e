"""Captures in, a Comparison out: aligned by iteration, every figure with what chance makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from traceview.comparison.align import aligned, choose_cut, ranges_of
from traceview.comparison.change import LEAST, changed, judge
from traceview.comparison.kernels import kernel_changes
from traceview.comparison.noise import LEVEL, ratio_interval
from traceview.comparison.notes import notes_on
from traceview.comparison.sample import COUNTS, HOST_FIGURES, PARTS, Sample, sample_of
from traceview.comparison.timeline import timelines
from traceview.comparison.whole import whole_sample
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations
from traceview.model.comparison import CaptureDifference, ComparedCapture, Comparison, FigureChange
from traceview.model.trace import Trace
from traceview.pipeline import Progress, analyze

Report = str | Path | Trace | Analysis


def compare(
    before: Report,
    after: Report,
    *more: Report,
    iteration: str | None = None,
    skip: int | None = None,
    device: str | None = None,
    cut: str = "auto",
    least: float = LEAST,
    progress: Progress | None = None,
) -> Comparison:
    """Say what changed from `before` to `after`, and to each of `more`: each is held against the first.

    A report is a path, a Trace or an Analysis; `iteration`, `skip` and `device` are those of analyze() and do
    not concern an Analysis. `cut` says where iterations end: at their NVTX ranges ("range"), when the
    GPU has finished them ("gpu"), or as the captures need it ("auto"; align.py). `least` is the share of the
    base's wall below which a difference is noise, however sure. `progress` is told each step.

    Raises TraceviewError (see errors.py) when a capture cannot be read or nothing can be compared.
    """
    _check(cut, least)
    analyses = []
    reports = (before, after, *more)
    for index, report in enumerate(reports):
        analyses.append(_analysis(report, iteration, skip, device, progress, index, len(reports)))
    return compare_analyses(analyses, cut=cut, least=least)


def _check(cut: str, least: float) -> None:
    if cut not in ("auto", "range", "gpu"):
        raise RequestError(f"--cut {cut!r} is none of auto, range and gpu")
    if not 0 <= least < 1:
        raise RequestError(f"the least difference that counts is a share from 0 to 1, not {least}")


def _analysis(
    report: Report,
    iteration: str | None,
    skip: int | None,
    device: str | None,
    progress: Progress | None,
    index: int,
    count: int,
) -> Analysis:
    if isinstance(report, Analysis):
        return report

    def step(name: str, done: float) -> None:
        if progress is not None:
            progress(f"{name} ({index + 1} of {count})", (index + done) / count)

    return analyze(report, iteration=iteration, skip=skip, device=device, progress=step)


def compare_analyses(analyses: Sequence[Analysis], *, cut: str = "auto", least: float = LEAST) -> Comparison:
    """Compare captures that are analysed already."""
    files = _told_apart([analysis.info.file for analysis in analyses])
    ranges = [ranges_of(analysis) for analysis in analyses]
    chosen, why = choose_cut(ranges, cut, files)
    samples = [
        whole_sample(analysis) if chosen == "whole" or found is None else sample_of(analysis, aligned(found, chosen))
        for analysis, found in zip(analyses, ranges, strict=True)
    ]
    captures = [_capture(*one, chosen) for one in zip(files, analyses, samples, strict=True)]
    against = tuple(
        _against(samples[0], sample, capture, least) for sample, capture in zip(samples[1:], captures[1:], strict=True)
    )
    told = notes_on(files, analyses, ranges, chosen)
    drawn = partial(timelines, analyses, samples, whole=chosen == "whole")
    return Comparison(captures[0], against, chosen, why, LEVEL, least, told, drawn)


def _told_apart(files: Sequence[str]) -> list[str]:
    """Number files of one name: their folders, which would tell them apart, reach no report."""
    return [
        f"{file} ({index + 1})" if files.count(file) > 1 else file  # the place on the command line
        for index, file in enumerate(files)
    ]


def _capture(file: str, analysis: Analysis, sample: Sample, cut: str) -> ComparedCapture:
    found = analysis.iterations
    return ComparedCapture(
        file=file,
        nsys_version=analysis.info.nsys_version,
        devices=tuple(f"{device.id} {device.name}".strip() for device in analysis.devices),
        range=found.range if isinstance(found, Iterations) and cut != "whole" else None,
        count=len(sample.wall),
        skipped=sample.skipped,
        wall_ns=tuple(sample.wall.tolist()),
        start_ns=tuple(sample.start.tolist()),
    )


def _against(before: Sample, after: Sample, capture: ComparedCapture, least: float) -> CaptureDifference:
    def change(name: str) -> FigureChange:
        unit = "count" if name in COUNTS else "ns"
        return changed(name, unit, before.figures[name], after.figures[name], LEVEL)

    wall = change("wall")
    verdict = judge(wall, before.wall, after.wall, least, LEVEL)
    ratio = ratio_interval(before.wall, after.wall)
    parts = tuple(change(name) for name in PARTS)
    return CaptureDifference(
        capture=capture,
        verdict=verdict.word,
        why=verdict.why,
        confidence=verdict.confidence,
        ratio=wall.after / wall.before if wall.before else None,
        ratio_low=ratio[0] if ratio else None,
        ratio_high=ratio[1] if ratio else None,
        wall=wall,
        parts=parts,
        left_over_ns=wall.difference - sum(part.difference for part in parts),
        idle=change("idle"),
        host=tuple(change(name) for name in HOST_FIGURES),
        kernels=kernel_changes(before.kernels, after.kernels, least, LEVEL),
    )
