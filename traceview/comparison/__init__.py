"""Compare captures: what changed between them, whether the change is noise, and what explains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from traceview.comparison.align import align_borders, iteration_times
from traceview.comparison.change import (
    LEVEL,
    MIN_CHANGE,
    Series,
    block_length,
    change_between,
    judge_time,
    mean_change,
    quantiles,
    ratio_interval,
)
from traceview.comparison.document import AnalysisDocument, Analyzed, DocumentFinding, read_document, with_unprofiled
from traceview.comparison.kernels import LineSamples, iteration_work, kernel_changes, line_changes, sample_lines
from traceview.comparison.notes import comparison_notes, difference_notes
from traceview.comparison.overlap import OverlapSample, overlap_changes, sample_overlap
from traceview.comparison.sample import (
    COUNTS,
    HOST_FIGURES,
    Sample,
    align_capture,
    mean_parts,
    sample_capture,
    sample_document,
    sample_iterations,
)
from traceview.errors import RequestError
from traceview.measure.iterations.times import IterationTimes
from traceview.model.analysis import Analysis, Iterations, IterationSummary, NotMeasured
from traceview.model.comparison import (
    CaptureDifference,
    ComparedCapture,
    Comparison,
    FigureChange,
    IterationWork,
    PredictedTime,
)
from traceview.model.frozen import dataclass
from traceview.model.trace import Trace
from traceview.model.unprofiled import ESTIMATE, ProfilerCosts
from traceview.pipeline import Progress, analyze
from traceview.read.formats import is_document
from traceview.replay.prediction import predict

__all__ = ["compare", "compare_analyses"]


Report = str | Path | Trace | Analyzed


def compare(
    before: Report,
    after: Report,
    *more: Report,
    iteration: str | None = None,
    skip: int | None = None,
    device: str | None = None,
    min_change: float = MIN_CHANGE,
    costs: ProfilerCosts | None = ESTIMATE,
    unprofiled_ns: Sequence[int] = (),
    changes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Compare captures with the first of them (docs/compare.md).

    Args:
        before: The base: a path, a Trace, an Analysis, or the path of a document of `traceview analyze --json`.
        after: What is compared with it, in any of these forms.
        more: Further captures, each compared with `before`.
        iteration: As in `analyze`; like `skip`, `device` and `costs` it does not apply to an Analysis or a document.
        skip: The number of warm-up iterations.
        device: The id of the only GPU to compare.
        min_change: Changes of the mean time below this share of the base's count as noise, from 0 to 1.
        costs: What the profiler adds to calls, as in `analyze`.
        unprofiled_ns: The measured time of an iteration without the profiler in ns, one for each capture, or none.
        changes: Ids of changes of `whatif` that were made together; the comparison has what they are predicted to give.
        progress: A function that is called before each step with its name and the fraction that is done.

    Returns:
        The difference of each capture from the base in ns per iteration, with intervals and a verdict.

    Raises:
        TraceviewError: A capture cannot be read, or there is nothing to compare.
    """
    if not 0 <= min_change < 1:
        raise RequestError(f"invalid min_change {min_change}: use a share from 0 to 1, for example 0.01")
    analyses = []
    reports = (before, after, *more)
    if len(unprofiled_ns) not in (0, len(reports)):
        raise RequestError(
            f"{len(unprofiled_ns)} times without the profiler for {len(reports)} captures: give one each"
        )
    for index, report in enumerate(reports):
        given = {"costs": costs, "unprofiled_ns": unprofiled_ns[index] if unprofiled_ns else None}
        options = {"iteration": iteration, "skip": skip, "device": device, **given}
        analyses.append(_analyze(report, options, progress, index, len(reports)))
    return compare_analyses(analyses, min_change=min_change, changes=changes)


def _analyze(report: Report, options: Mapping[str, Any], progress: Progress | None, index: int, count: int) -> Analyzed:
    if isinstance(report, (str, Path)) and is_document(Path(report)):
        document, given = read_document(Path(report)), options["unprofiled_ns"]
        return document if given is None else with_unprofiled(document, given)
    if isinstance(report, (Analysis, AnalysisDocument)):
        return report

    def step(name: str, done: float) -> None:
        if progress is not None:
            progress(f"{name} ({index + 1} of {count})", (index + done) / count)

    return analyze(report, **options, progress=step)


@dataclass(frozen=True, slots=True)
class _Side:
    """A capture in a comparison, and its figures by iteration."""

    file: str
    analysis: Analyzed
    sample: Sample
    lines: LineSamples | None  # idle time by line, of the same iterations
    overlap: OverlapSample | None  # hidden and exposed time, of the same iterations

    @property
    def time(self) -> Series:
        return Series(self.sample.wall, block_length(self.sample.wall))


def compare_analyses(
    analyses: Sequence[Analyzed], *, min_change: float = MIN_CHANGE, changes: Sequence[str] = ()
) -> Comparison:
    """Compare analyses with the first of them; the options are those of compare()."""
    names = [analysis.info.file for analysis in analyses]
    # Reports do not show folders: names that occur twice get their position on the command line.
    files = [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]
    iterations = [iteration_times(analysis) for analysis in analyses]
    without = next((file for file, host in zip(files, iterations, strict=True) if host is None), "")
    is_whole = bool(without)
    sides = [_side(*row, is_whole) for row in zip(files, analyses, iterations, strict=True)]
    if any(isinstance(analysis, AnalysisDocument) for analysis in analyses):
        sides = [replace(side, sample=side.sample.with_twice_in_other()) for side in sides]
    captures = [_capture(side, is_whole) for side in sides]
    against = tuple(
        _compare_sides(sides[0], side, captures[0], capture, min_change)
        for side, capture in zip(sides[1:], captures[1:], strict=True)
    )
    if changes:
        predicted = predicted_time(analyses[0], changes)
        against = tuple(
            replace(each, predicted=with_result(predicted, each.time.after, each.capture)) for each in against
        )
    why = f"{without} has no iterations, so each capture is compared as a whole" if without else ""
    return Comparison(captures[0], against, why, LEVEL, min_change, comparison_notes(files, analyses, is_whole))


def _side(file: str, analysis: Analyzed, host: IterationTimes | None, is_whole: bool) -> _Side:
    if isinstance(analysis, AnalysisDocument):
        sample = sample_document(analysis, host, is_whole)
        return _Side(file, analysis, sample, None, sample_overlap(analysis, None, is_whole))
    if is_whole or host is None:
        at, sample = align_capture(analysis), sample_capture(analysis)
    else:
        at = align_borders(host)
        sample = sample_iterations(analysis, at)
    return _Side(file, analysis, sample, sample_lines(analysis, at), sample_overlap(analysis, at, is_whole))


def _capture(side: _Side, is_whole: bool) -> ComparedCapture:
    analysis, sample, iterations = side.analysis, side.sample, side.analysis.iterations
    if isinstance(iterations, Iterations) and not is_whole:
        name, described = iterations.range, IterationSummary.build(iterations)
        unprofiled = None if iterations.unprofiled is None else iterations.unprofiled.times
    else:
        name, described, unprofiled = None, IterationSummary("none", None, None), None
    return ComparedCapture(
        file=side.file,
        nsys_version=analysis.info.nsys_version,
        devices=tuple(f"{device.id} {device.name}".strip() for device in analysis.devices),
        iterations=described,
        range=name,
        count=len(sample.wall),
        skipped=sample.skipped,
        wall_ns=tuple(sample.wall.tolist()),
        start_ns=tuple(sample.start.tolist()),
        quantiles_ns=quantiles(sample.wall),
        unprofiled_ns=unprofiled,
    )


def _compare_sides(
    base: _Side, side: _Side, before: ComparedCapture, after: ComparedCapture, min_change: float
) -> CaptureDifference:
    old_figures, new_figures = base.sample.figures, side.sample.figures

    def change(name: str) -> FigureChange:
        unit = "count" if name in COUNTS else "ns"
        return change_between(name, unit, old_figures[name], new_figures[name])

    old, new = base.time, side.time
    time = mean_change("time", old, new)
    work = iteration_work(base.sample.kernels, side.sample.kernels)
    verdict = judge_time(time, old, new, min_change, work)
    low, high = (ratio_interval(old, new) if time.before else None) or (None, None)
    difference = CaptureDifference(
        capture=after,
        verdict=verdict.word,
        why=verdict.why,
        confidence=verdict.probability,
        ratio=_ratio(time.after, time.before),
        ratio_low=low,
        ratio_high=high,
        time=time,
        mean_parts=mean_parts(time, old, new, old_figures, new_figures),
        work=work,
        host=tuple(change(name) for name in HOST_FIGURES if name in old_figures and name in new_figures),
        kernels=kernel_changes(base.sample.kernels, side.sample.kernels, min_change),
        overlap=overlap_changes(base.overlap, side.overlap, old, new, min_change) if work.is_same else (),
        lines=line_changes(base.lines, side.lines, old, new, min_change),
        unprofiled_ratio=_unprofiled_ratio(before, after, work),
    )
    return replace(difference, notes=difference_notes(before, difference))


def _unprofiled_ratio(before: ComparedCapture, after: ComparedCapture, work: IterationWork) -> float | None:
    if before.unprofiled_ns is None or after.unprofiled_ns is None or not work.is_same:
        return None
    return _ratio(after.unprofiled_ns["mean"], before.unprofiled_ns["mean"])


def _ratio(after: int, before: int) -> float | None:
    return max(0, after) / before if before else None


def predicted_time(report: Analyzed, changes: Sequence[str]) -> PredictedTime:
    """Return the time of an iteration after changes that are made together.

    Raises RequestError if a change is unknown or does not apply, if the capture has no iterations, and if a document
    does not hold the prediction.
    """
    iterations = report.iterations
    if isinstance(iterations, NotMeasured):
        raise RequestError(f"{report.info.file}: --change needs iterations: {iterations.reason}")
    if isinstance(report, AnalysisDocument):
        return _time_in_document(report, iterations, changes)
    # The captures after a change have the profiler, too.
    captured = replace(report, iterations=replace(iterations, unprofiled=None))
    made = predict(captured, changes)
    return PredictedTime(made.change, made.title, iterations.time_ns, made.iteration_ns, made.low_ns, made.high_ns)


def _time_in_document(document: AnalysisDocument, iterations: Iterations, changes: Sequence[str]) -> PredictedTime:
    """Return the prediction that a finding holds."""
    held = {finding.change: finding for finding in _predicted(document.findings)}
    finding = next((each for names, each in held.items() if set(names.split("+")) == set(changes)), None)
    if finding is None or finding.gain is None:
        holds = f" (it holds predictions of {', '.join(held)})" if held else ""
        raise RequestError(
            f"{document.info.file}: a document has no trace from which {'+'.join(changes)} could be predicted{holds}; "
            "name the report"
        )
    gain = finding.gain
    is_unprofiled = iterations.unprofiled is not None and gain.of_ns != iterations.time_ns
    made, low, high = (gain.of_ns - saved for saved in (gain.ns, gain.high_ns, gain.low_ns))
    return PredictedTime(finding.change, finding.remedy, gain.of_ns, made, low, high, without_profiler=is_unprofiled)


def _predicted(findings: Sequence[DocumentFinding]) -> Iterator[DocumentFinding]:
    """Yield the findings whose gain is a prediction of their change, the largest gain last."""
    for finding in reversed(findings):
        yield from _predicted(finding.others)
        if finding.change and finding.gain is not None and finding.gain.source == "predicted":
            yield finding


def with_result(predicted: PredictedTime, time_ns: int, capture: ComparedCapture) -> PredictedTime:
    """Return the prediction with the time that came; it stays unknown where the capture does not show it."""
    if predicted.without_profiler:
        return replace(predicted, result_ns=capture.unprofiled_ns["mean"] if capture.unprofiled_ns else None)
    return replace(predicted, result_ns=time_ns)
