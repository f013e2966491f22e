"""Compare captures: what changed between them, whether the change is noise, and which parts explain it.

    align.py     start and end of the iterations, cut in the same way in every capture
    sample.py    the figures of each iteration, or of a capture without iterations
    kernels.py   launches and GPU time by kernel name
    change.py    bootstrap intervals, changes of figures and the verdict
    notes.py     other differences between the captures
    timeline.py  events around the median iteration, for the page
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from traceview.comparison.align import align_iterations, choose_cut, find_host_iterations
from traceview.comparison.change import LEVEL, MIN_CHANGE, change_between, judge_wall, ratio_interval
from traceview.comparison.kernels import kernel_changes
from traceview.comparison.notes import comparison_notes
from traceview.comparison.sample import COUNTS, HOST_FIGURES, PARTS, Sample, sample_capture, sample_iterations
from traceview.comparison.timeline import median_timelines
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations
from traceview.model.comparison import CaptureDifference, ComparedCapture, Comparison, FigureChange
from traceview.model.trace import Trace
from traceview.pipeline import Progress, analyze

__all__ = ["compare", "compare_analyses"]

Report = str | Path | Trace | Analysis


def compare(
    before: Report,
    after: Report,
    *more: Report,
    iteration: str | None = None,
    skip: int | None = None,
    device: str | None = None,
    cut: str = "auto",
    min_change: float = MIN_CHANGE,
    progress: Progress | None = None,
) -> Comparison:
    """Compare `after` and each of `more` with `before`, the base.

    A report is a path, a Trace or an Analysis. `iteration`, `skip` and `device` are those of analyze() and do not
    apply to an Analysis. `cut` selects where iterations end: at their NVTX ranges ("range"), when the GPU has
    finished them ("gpu"), or depending on the captures ("auto", see align.py). Wall-time changes below the share
    `min_change` of the base's wall time count as noise. `progress` is called at each step.

    Raises TraceviewError (see errors.py) if a capture cannot be read or there is nothing to compare.
    """
    _check_options(cut, min_change)
    analyses = []
    reports = (before, after, *more)
    for index, report in enumerate(reports):
        analyses.append(_analyze(report, iteration, skip, device, progress, index, len(reports)))
    return compare_analyses(analyses, cut=cut, min_change=min_change)


def _check_options(cut: str, min_change: float) -> None:
    if cut not in ("auto", "range", "gpu"):
        raise RequestError(f"invalid --cut {cut!r}: use auto, range or gpu")
    if not 0 <= min_change < 1:
        raise RequestError(f"invalid min_change {min_change}: use a share from 0 to 1, for example 0.01")


def _analyze(
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


def compare_analyses(
    analyses: Sequence[Analysis], *, cut: str = "auto", min_change: float = MIN_CHANGE
) -> Comparison:
    """Compare analyses with the first of them; the options are those of compare()."""
    files = _number_equal_names([analysis.info.file for analysis in analyses])
    iterations = [find_host_iterations(analysis) for analysis in analyses]
    chosen, why = choose_cut(iterations, cut, files)
    samples = [
        sample_capture(analysis)
        if chosen == "whole" or host is None
        else sample_iterations(analysis, align_iterations(host, chosen))
        for analysis, host in zip(analyses, iterations, strict=True)
    ]
    captures = [_capture(*row, chosen) for row in zip(files, analyses, samples, strict=True)]
    against = tuple(
        _compare_samples(samples[0], sample, capture, min_change)
        for sample, capture in zip(samples[1:], captures[1:], strict=True)
    )
    notes = comparison_notes(files, analyses, iterations, chosen)
    timelines = partial(median_timelines, analyses, samples, whole=chosen == "whole")
    return Comparison(captures[0], against, chosen, why, LEVEL, min_change, notes, timelines)


def _number_equal_names(files: Sequence[str]) -> list[str]:
    """Append the position on the command line to names that occur twice; reports do not show folders."""
    return [f"{file} ({index + 1})" if files.count(file) > 1 else file for index, file in enumerate(files)]


def _capture(file: str, analysis: Analysis, sample: Sample, cut: str) -> ComparedCapture:
    iterations = analysis.iterations
    return ComparedCapture(
        file=file,
        nsys_version=analysis.info.nsys_version,
        devices=tuple(f"{device.id} {device.name}".strip() for device in analysis.devices),
        range=iterations.range if isinstance(iterations, Iterations) and cut != "whole" else None,
        count=len(sample.wall),
        skipped=sample.skipped,
        wall_ns=tuple(sample.wall.tolist()),
        start_ns=tuple(sample.start.tolist()),
    )


def _compare_samples(before: Sample, after: Sample, capture: ComparedCapture, min_change: float) -> CaptureDifference:
    def change(name: str) -> FigureChange:
        unit = "count" if name in COUNTS else "ns"
        return change_between(name, unit, before.figures[name], after.figures[name], LEVEL)

    wall = change("wall")
    verdict = judge_wall(wall, before.wall, after.wall, min_change, LEVEL)
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
        kernels=kernel_changes(before.kernels, after.kernels, min_change, LEVEL),
    )
