"""What `whatif` predicts from the first capture for a change that was made, beside what came.

Both are times of captures, with the cost of the profiler. The prediction in a document is one without the profiler
where that is known; then so is the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceview.comparison.document import AnalysisDocument, Analyzed, DocumentFinding
from traceview.errors import RequestError
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.comparison import ComparedCapture, PredictedTime
from traceview.replay.prediction import predict


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
