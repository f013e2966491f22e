"""The closed loop: predict from a recording, compare it with the recording after the change, keep both in a ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from traceview.comparison import compare_analyses
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.whatif import Prediction
from traceview.read.source import display_name
from traceview.replay.prediction import predict, whatif
from traceview.report.files import write_text
from traceview.report.ledger import ExpectedTime, GainLedger, LedgerEntry, OpenStep, to_json

LEDGER = "ledger.json"
MAX_LEDGER = 10_000_000  # bytes


def read_ledger(folder: Path) -> GainLedger:
    """Return the ledger of a folder; an empty one if the folder has none. Raises RequestError."""
    path = folder / LEDGER
    try:
        if path.stat().st_size > MAX_LEDGER:
            raise ValueError
        document = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(_entry(row) for row in document["entries"])
        step = document["open_step"]
        return GainLedger(entries, step and _step(step))
    except FileNotFoundError:
        return GainLedger()
    except (OSError, ValueError, TypeError, KeyError):
        raise RequestError(
            f"{display_name(path)} is not a ledger of traceview; choose another folder with --folder"
        ) from None


def _step(row: Any) -> OpenStep:
    expected = tuple(_expected(values) for values in row["expected"])
    return OpenStep(str(row["recording"]), int(row["iteration_ns"]), expected)


def _entry(row: Any) -> LedgerEntry:
    before_ns, measured_ns = int(row["before_ns"]), int(row["measured_ns"])
    if before_ns <= 0 or measured_ns <= 0:
        raise ValueError
    before, after, verdict, why = (str(row[name]) for name in ("before", "after", "verdict", "why"))
    return LedgerEntry(before, after, before_ns, measured_ns, _expected(row["expected"]), verdict, why)


def _expected(row: Any) -> ExpectedTime:
    return ExpectedTime(
        str(row["change"]), str(row["title"]), *(int(row[name]) for name in ("iteration_ns", "low_ns", "high_ns"))
    )


def write_ledger(folder: Path, ledger: GainLedger) -> None:
    """Write the ledger of a folder. Raises OutputError."""
    write_text(folder / LEDGER, to_json(ledger))


def open_step(analysis: Analysis, recording: str) -> OpenStep:
    """Return the predictions from a recording. Raises RequestError if nothing can be predicted."""
    result = whatif(_as_captured(analysis), faster_kernels={})
    if isinstance(result, NotMeasured):
        raise RequestError(f"{analysis.info.file}: nothing can be predicted: {result.reason}")
    return OpenStep(recording, result.measured_ns, tuple(map(_expected_time, result.predictions)))


def expected_together(analysis: Analysis, names: Sequence[str]) -> ExpectedTime:
    """Return the prediction for changes made together. Raises RequestError if it is unknown or does not apply."""
    return _expected_time(predict(_as_captured(analysis), names))


def ledger_entry(
    before: Analysis, after: Analysis, step: OpenStep, expected: ExpectedTime, recording: str
) -> LedgerEntry:
    """Return the entry of a change. Raises RequestError if the recording after it has no iterations."""
    if isinstance(after.iterations, NotMeasured):
        raise RequestError(f"{after.info.file}: nothing can be compared: {after.iterations.reason}")
    against = compare_analyses([before, after]).against[0]
    times = (step.iteration_ns, after.iterations.time_ns)
    return LedgerEntry(step.recording, recording, *times, expected, against.verdict, against.why)


def _as_captured(analysis: Analysis) -> Analysis:
    """Return the analysis without the estimate of a run without the profiler: both recordings have the profiler."""
    iterations = analysis.iterations
    if not isinstance(iterations, Iterations):
        return analysis
    return replace(analysis, iterations=replace(iterations, unprofiled=None))


def _expected_time(prediction: Prediction) -> ExpectedTime:
    times = (prediction.iteration_ns, prediction.low_ns, prediction.high_ns)
    return ExpectedTime(prediction.change, prediction.title, *times)
