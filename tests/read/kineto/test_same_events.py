"""The same events in both profilers' formats give the same figures, to the nanosecond."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.captures import analyzed, sample
from tests.read.kineto.as_kineto import EPOCH, as_kineto
from traceview.captures.info import describe
from traceview.model.trace import Trace
from traceview.pipeline import analyze
from traceview.read.kineto.events import scope_events
from traceview.report.analysis import document

SINGLE = ["dual.sqlite", "trainer/prefetch.sqlite"]
TIMES = ("start_ns", "end_ns", "gpu_end_ns")


def first(trace: Trace) -> int:
    """Return the start of the first event, from which times of a trace count."""
    frames = (trace.operations, trace.api, trace.ranges, trace.overhead)
    return min(int(frame["start"].min()) for frame in frames if len(frame))  # type: ignore[arg-type]


def figures(path: Path, zero: int = 0) -> Any:
    """Return all figures but those that differ between formats: file, versions, notes and NVTX domains.

    The profiler's costs are left out: they are known for nsys only.
    """
    actual = moved(document(analyze(path, costs=None)), zero)
    del actual["report"], actual["notes"]
    del actual["program"]["evidence"]  # the profiler itself is evidence of PyTorch
    for use in (*actual["nvtx"], *actual["nvtx_phases"]):
        del use["domain"]
    for use in actual["speed_of_light"]:
        del use["unknown_because"]  # says what to do with the profiler
    for finding in actual["findings"]:
        del finding["advice"], finding["code"], finding["remedy"]  # name options of the profiler
    for device in actual["devices"]:
        for place in (*device["kernel_places"], *device["steady"]["kernel_places"]):
            del place["op"], place["inner_op"]  # as_kineto adds an op
        del device["modules"], device["steady"]["modules"]
    return actual


def moved(value: Any, by: int, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: moved(inner, by, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [inner - by if key == "window_ns" else moved(inner, by) for inner in value]
    return value - by if key in TIMES and value is not None else value


@pytest.mark.parametrize("name", SINGLE)
def test_same_figures_as_the_export(tmp_path: Path, name: str) -> None:
    export = sample(name)
    trace = as_kineto(export, tmp_path / "run.pt.trace.json")
    expected = figures(export, first(analyzed(export).trace))
    assert expected["devices"][0]["busy_ns"] > 0 and expected["nvtx"]
    assert figures(trace) == expected


@pytest.mark.parametrize(
    ("clock", "base", "compact"),
    [
        (EPOCH + 7_999_000_000_000_123, None, False),  # as torch wrote in 2024: us since 1970, 17 digits with ns
        (7_999_000_000_000_123, EPOCH, True),  # the largest that baseTimeNanoseconds leaves; keys in another order
    ],
)
def test_nanoseconds_survive_every_clock(tmp_path: Path, clock: int, base: int | None, compact: bool) -> None:
    plain = as_kineto(sample("trainer/serial.sqlite"), tmp_path / "a.json")
    late = as_kineto(sample("trainer/serial.sqlite"), tmp_path / "b.json", clock=clock, base=base, compact=compact)
    if compact:
        late = Path(f"{late}.gz")
        late.write_bytes(gzip.compress((tmp_path / "b.json").read_bytes(), 1))
    assert figures(late) == figures(plain)


def test_notes_name_missing_data(tmp_path: Path) -> None:
    trace = as_kineto(sample("trainer/serial.sqlite"), tmp_path / "run.json")
    analysis = analyze(trace)
    assert (analysis.info.profiler, analysis.info.nsys_version) == ("torch.profiler", None)
    assert any("record_function" in note.text for note in analysis.notes)
    assert not any("overhead" in note.text for note in analysis.notes), "this one has overhead events"
    without = trace.read_text(encoding="utf-8").replace('"overhead"', '"cpu_op"').replace('"cuda_sync"', '"cpu_op"')
    trace.write_text(without.replace('"cuda_event"', '"cpu_op"'), encoding="utf-8")
    notes = analyze(trace).notes
    assert any("`profiler` is not measured" in note.text for note in notes)
    assert any("stream waits are not measured" in note.text for note in notes)


def test_info_of_a_trace(tmp_path: Path) -> None:
    export = sample("trainer/serial.sqlite")
    actual, expected = describe(as_kineto(export, tmp_path / "run.json")), describe(export)
    assert actual.profiler == "torch.profiler" and actual.streams == expected.streams
    assert actual.ranges == expected.ranges and actual.gpus == expected.gpus
    assert actual.tables["CUPTI_ACTIVITY_KIND_KERNEL"] == expected.tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    assert any("record_function" in line for line in actual.missing)


def test_functions_that_were_open_have_no_line() -> None:
    """torch.profiler gives functions that are open when it begins the line of that moment."""
    names = {"train.py(82): train": 1, "torch/autograd/profiler.py(374): _start_trace": 2, "train.py(23): forward": 3}
    events = [
        f'{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "tid": 1, "ts": {at}, "dur": 1}}'
        for name, at in names.items()
    ]
    (scopes,) = scope_events(pl.Series(events))
    assert scopes["name"].to_list() == ["train.py train", "train.py:23 forward"]
