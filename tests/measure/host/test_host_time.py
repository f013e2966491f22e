"""States and source lines of idle time, against a loop over nanoseconds; hand-made evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.made_trace import made_trace
from traceview.measure.host.lines import share_interval
from traceview.measure.host.stack_cells import sampled_cells
from traceview.model.program import Program
from traceview.model.stacks import EVENT_STATES, EVENTS, FRAMES, SAMPLES, STACKS, HostEvidence
from traceview.model.trace import Trace
from traceview.pipeline import analyze
from traceview.report.analysis.terminal import render

# A tree: main (0) calls train (1), which calls json (2, a library) and sleeps (3, own code).
FRAME_ROWS = [
    ("<module>", "train.py", 1, False),
    ("train", "train.py", 20, False),
    ("encode", "json/encoder.py", 7, True),
    ("train", "train.py", 21, False),
]
STACK_ROWS = [(-1, 0), (0, 1), (1, 2), (0, 3)]
OWN_LINE = {0: 1, 1: 20, 2: 20, 3: 21}
NAMES = ["futex", "read", "jit", "gc", "cpu"]
EVENT_KINDS = (
    *(("futex", "waiting"), ("read", "waiting"), ("jit", "compiling"), ("gc", "garbage_collection")),
    *(("cpu", "off_cpu"), ("cpu", "running")),
)
END = 300


def frame(schema: Mapping[str, Any], rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    kinds = {name: pl.Enum([*NAMES, ""]) if kind is pl.Enum else kind for name, kind in schema.items()}
    return pl.DataFrame(rows, schema=kinds, orient="row")


def evidence(samples: Sequence[tuple[Any, ...]], events: Sequence[tuple[Any, ...]]) -> HostEvidence:
    return HostEvidence(
        frame(FRAMES, FRAME_ROWS),
        frame(STACKS, STACK_ROWS),
        frame(SAMPLES, samples),
        frame(EVENTS, [(*event, "") for event in sorted(events)]),
    )


def random_trace(seed: int, exact: bool, complete: bool = False) -> Trace:
    """Two threads launch kernels; thread 0 has the Python stacks, of which none is missing if they are `complete`."""
    rng = np.random.default_rng(seed)
    api: list[tuple[int, int, str, int]] = []
    operations: list[tuple[int, int, str, int, int | None]] = []
    for thread in (0, 1):
        at = int(rng.integers(0, 20))
        while at < END - 60:
            length = int(rng.integers(1, 8))
            role = str(rng.choice(["api", "sync"]))
            if rng.random() < 0.6:
                begin = at + length + int(rng.integers(-2, 15))
                operations.append((begin, begin + int(rng.integers(1, 25)), "compute", thread, len(api)))
            api.append((at, at + length, role, thread))
            at += length + int(rng.integers(1, 30))
    overhead = [(int(at), int(at) + 5) for at in rng.integers(0, END, 2)]
    events = []
    for _ in range(12):
        start = int(rng.integers(0, END))
        name, state = EVENT_KINDS[int(rng.integers(0, len(EVENT_KINDS)))]
        events.append((start, start + int(rng.integers(1, 40)), state, name, int(rng.integers(0, 2))))
    moments = sorted(set(rng.integers(0, END, 25).tolist()))
    if complete:
        moments = np.cumsum(rng.integers(8, 15, 25)).tolist()
    samples = []
    for index, moment in enumerate(moments):
        end = min(moment + int(rng.integers(1, 12)), [*moments, END][index + 1]) if exact else moment
        samples.append((moment, end, 0, 0, exact and bool(rng.integers(0, 2)), int(rng.integers(-1, 4))))
    trace = made_trace(operations, api, overhead=overhead)
    return replace(trace, evidence=evidence(samples, events))


def cell_of(trace: Trace, moment: int) -> dict[str, Any] | None:
    """Return the sample that a nanosecond belongs to: the one that covers it, or the nearest within one period."""
    rows = trace.evidence.samples.to_dicts()
    if any(row["end"] > row["start"] for row in rows):
        return next((row for row in rows if row["start"] <= moment < row["end"]), None)
    period = int(np.median(np.diff([row["start"] for row in rows])))
    for before, row, after in zip([None, *rows], rows, [*rows[1:], None], strict=False):
        first, last = row["start"] - period, row["start"] + period
        if before:
            first = max(first, before["start"] + (row["start"] - before["start"]) // 2)
        if after:
            last = min(last, row["start"] + (after["start"] - row["start"]) // 2)
        if first <= moment < last:
            return row
    return None


def slow_host_time(trace: Trace) -> tuple[Counter[str], Counter[str], Counter[int], Counter[int]]:
    """Return ns by state, waits by name, idle ns by line and `host` ns by line."""
    states: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    idle: Counter[int] = Counter()
    host: Counter[int] = Counter()
    operations, api = trace.operations.to_dicts(), trace.api.to_dicts()
    events = trace.evidence.events.to_dicts()
    overhead = trace.overhead.rows()
    first, last = min(op["start"] for op in operations), max(op["end"] for op in operations)
    for moment in range(first, last):
        if any(op["start"] <= moment < op["end"] for op in operations):
            continue
        following = min((op for op in operations if op["start"] > moment), key=lambda op: (op["start"], op["end"]))
        call = api[following["launch"]]
        if any(start <= moment < end for start, end in overhead) or moment >= max(call["end"], call["start"]):
            continue
        own = [one for one in api if one["thread"] == call["thread"] and one["start"] <= moment < one["end"]]
        is_host = moment < call["start"] and not own
        cell = cell_of(trace, moment)
        if cell and cell["stack"] >= 0:
            line = OWN_LINE[cell["stack"]]
            idle[line] += 1
            host[line] += is_host
        if not is_host:
            continue
        now = [
            event for event in events if event["thread"] == call["thread"] and event["start"] <= moment < event["end"]
        ]
        running = cell is not None and cell["holds_gil"] and call["thread"] == 0
        present = {event["state"] for event in now} | ({"running"} if running else set())
        state = next((name for name in EVENT_STATES if name in present), "unattributed")
        states[state] += 1
        if state == "waiting":
            waits[next(event["name"] for event in now if event["state"] == "waiting")] += 1
    return states, waits, idle, host


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_states_and_lines_against_a_slow_count(seed: int, exact: bool) -> None:
    trace = random_trace(seed, exact, complete=True)
    analysis = analyze(trace, whole=True)
    states, waits, idle, host = slow_host_time(trace)
    gaps = analysis.devices[0].gaps
    assert sum(gaps.host_states.ns.values()) == gaps.causes["host"] == sum(states.values())
    assert {name: ns for name, ns in gaps.host_states.ns.items() if ns} == dict(states)
    assert dict(gaps.host_states.waits) == dict(waits)
    lines = analysis.tables["lines"].rows
    assert {row.line: row.idle_ns for row in lines} == dict(idle)
    assert {row.line: row.host_ns for row in lines} == {line: host[line] for line in idle}
    for row in lines:
        assert row.low_ns <= row.idle_ns <= row.high_ns
        assert (row.low_ns == row.high_ns) == exact or row.idle_ns == sum(idle.values())


def test_lines_beyond_the_limit_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(0, exact=True, complete=True)
    every = analyze(trace, whole=True).tables["lines"].rows
    monkeypatch.setattr("traceview.measure.host.lines.MAX_LINES", 1)
    first, rest = analyze(trace, whole=True).tables["lines"].rows
    assert first == every[0] and rest.place == f"({len(every) - 1} other lines)"
    assert rest.idle_ns == sum(row.idle_ns for row in every[1:])


def test_without_evidence_host_time_is_unattributed() -> None:
    trace = made_trace([(0, 10, "compute", 0, 0), (50, 60, "compute", 0, 1)], [(0, 5, "api", 0), (40, 45, "api", 0)])
    analysis = analyze(trace)
    assert analysis.tables["lines"].rows == ()
    assert analysis.devices[0].gaps.host_states.ns == {**dict.fromkeys(EVENT_STATES, 0), "unattributed": 30}


def test_share_interval_contains_the_share() -> None:
    low, high = share_interval(0.5, 100)
    assert low == pytest.approx(0.404, abs=0.001) and high == pytest.approx(0.596, abs=0.001)
    assert share_interval(0.0, 10)[0] == 0 and share_interval(1.0, 10)[1] == 1


def host_bound_trace(samples: Sequence[tuple[Any, ...]], events: Sequence[tuple[Any, ...]]) -> Trace:
    """Return a made trace whose GPU waits 900 ms for the host, between two kernels of 50 ms."""
    ms = 1_000_000
    operations = [(0, 50 * ms, "compute", 0, 0), (950 * ms, 1000 * ms, "compute", 0, 1)]
    trace = made_trace(operations, [(0, ms, "api", 0), (949 * ms, 950 * ms, "api", 0)])
    return replace(trace, evidence=evidence(samples, events))


def test_finding_names_the_line_and_what_helps_there() -> None:
    ms = 1_000_000
    samples = [(at * ms, at * ms, 0, 0, True, 2 if at < 700 else 3) for at in range(50, 950)]
    program = Program("pytorch", ("pytorch",), training=True, python=True)
    named = analyze(replace(host_bound_trace(samples, []), program=program))
    finding = named.findings[0]
    assert finding.id == "host_bound" and finding.title.endswith(", at train.py:20 (train)")
    assert finding.advice.startswith("JSON: ") and "to find it" not in finding.advice
    assert finding.code == ""
    assert finding.host is not None and [frame.text for frame in finding.host.calls] == ["encode (json/encoder.py:7)"]
    assert finding.host.stack[finding.host.own].text == "train (train.py:20)"
    assert "train (train.py:20) > encode (json/encoder.py:7)" in render(named)
    unknown = analyze(replace(host_bound_trace([], []), program=program)).findings[0]
    assert "to find it" in unknown.advice


def test_several_lines_have_a_table_and_the_effect_of_less_work() -> None:
    """Three lines share a wait: none is in the title, and no sentence says that reading a table saves time."""
    ms = 1_000_000
    samples = [(at * ms, at * ms, 0, 0, False, (0, 1, 3)[at % 3]) for at in range(50, 950)]
    analysis = analyze(host_bound_trace(samples, []))
    finding = analysis.findings[0]
    assert finding.remedy == "See the table of lines that made the GPU wait." and " at " not in finding.title
    assert finding.effect and " would save " in analysis.answer.text and "See the table" not in analysis.answer.text


def test_finding_names_the_call_in_which_its_line_waits() -> None:
    """The longest wait of all is at another line, which has less time."""
    ms = 1_000_000
    samples = [(at * ms, at * ms, 0, 0, False, 3 if at < 700 else 1) for at in range(50, 950)]
    events = [(50 * ms, 350 * ms, "waiting", "read", 0), (400 * ms, 690 * ms, "waiting", "futex", 0)]
    events += [(700 * ms, 940 * ms, "waiting", "futex", 0)]
    finding = analyze(host_bound_trace(samples, events)).findings[0]
    assert finding.title.endswith("650 ms at train.py:21 (train), waiting in `read`")
    assert finding.host is not None and (finding.host.state, finding.host.waits_in) == ("waiting", "read")
    assert finding.host.calls == () and finding.host.time_ns == 649_500_000
    assert finding.advice.startswith("Files: ")


def test_finding_with_a_known_place_does_not_guess_what_runs_there() -> None:
    ms = 1_000_000
    samples = [(at * ms, at * ms, 0, 0, True, 3) for at in range(50, 950)]
    program = Program("pytorch", ("pytorch",), training=True, python=True)
    finding = analyze(replace(host_bound_trace(samples, []), program=program)).findings[0]
    assert finding.title.endswith("at train.py:21 (train)")
    assert finding.advice.startswith("The launching thread ran code outside CUDA. Move it to another thread")
    assert finding.code == ""


def test_synchronizations_name_their_line() -> None:
    """The host waits 80 ms in each of 20 synchronizations, 10 ms of them after the GPU is done."""
    ms = 1_000_000
    operations, api, samples = [], [], []
    for step in range(20):
        at = step * 100 * ms
        operations.append((at + ms, at + 70 * ms, "compute", 0, 2 * step))
        api += [(at, at + ms, "api", 0), (at + 2 * ms, at + 80 * ms, "sync", 0)]
        samples += [(moment, moment, 0, 0, False, 3) for moment in range(at + 2 * ms, at + 80 * ms, ms)]
        samples += [(moment, moment, 0, 0, True, 2) for moment in range(at + 80 * ms, at + 100 * ms, ms)]
    analysis = analyze(replace(made_trace(operations, api), evidence=evidence(samples, [])))
    (finding,) = (finding for finding in analysis.findings if finding.id == "synchronize")
    assert finding.title.endswith("mostly at train.py:21 (train)")
    assert finding.host is not None and (finding.host.own, finding.host.state) == (1, "")


def test_functions_on_one_line_are_one_row() -> None:
    trace = host_bound_trace([(at * 1_000_000, at * 1_000_000, 0, 0, True, at % 2 + 2) for at in range(50, 950)], [])
    frames = trace.evidence.frames.with_columns(
        line=pl.Series([1, 20, 7, 20], dtype=pl.Int32), function=pl.Series(["<module>", "train", "encode", "<genexpr>"])
    )
    trace = replace(trace, evidence=replace(trace.evidence, frames=frames))
    (row,) = analyze(trace, whole=True).tables["lines"].rows
    assert (row.place, row.samples) == ("train.py:20", 900) and row.function in ("train", "<genexpr>")


def test_finding_names_the_system_call_or_the_state() -> None:
    ms = 1_000_000
    for name, state, where in (
        ("read", "waiting", "in `read`"),
        ("gc", "garbage_collection", "in garbage collections"),
    ):
        events = [(100 * ms, 600 * ms, state, name, 0)]
        analysis = analyze(host_bound_trace([], events))
        assert analysis.findings[0].title.endswith(f", 500 ms {where}")
        shown = render(analysis)
        assert "of `host`:" in shown and state.replace("_", " ") in shown
    assert "of `host`:" not in render(analyze(host_bound_trace([], [])))


def unseen_trace(line: int, hole: bool, early: bool = False, steps: int = 10) -> Trace:
    """Return a made trace: in each step of 100 ms a kernel of 50 ms, then 40 ms of code that holds the lock.

    nsys sees line 20 before and line 1 after it. In between it writes the late stack, or nothing if `hole`.
    The lock is free at the launch, or shortly before it if `early`.
    """
    ms = 1_000_000
    operations, api, samples = [], [], []
    for step in range(steps):
        at = 100 * ms * step
        operations.append((at, at + 50 * ms, "compute", 0, step))
        api.append((at - ms // 2, at, "api", 0))
        samples += [(at + k * ms, at + k * ms, 0, 0, False, line) for k in range(50)]
        late = range(50, 100 if early else 99)
        samples += [(at + k * ms, at + k * ms, 0, 0, True, 0) for k in (late[:1] if hole else late)]
        if early:
            samples[-1] = (at + 99 * ms, at + 99 * ms, 0, 0, False, 0)
    trace = made_trace(operations, api)
    return replace(trace, evidence=evidence(samples, []))


@pytest.mark.parametrize(("hole", "early"), [(False, False), (True, False), (False, True)])
def test_time_in_which_nsys_sees_nothing_is_between_two_lines(hole: bool, early: bool) -> None:
    analysis = analyze(unseen_trace(2, hole, early), whole=True)
    row = analysis.tables["lines"].rows[0]
    assert (row.place, row.function) == ("train.py:20 to train.py:1", "train")
    assert row.idle_ns == pytest.approx(9 * 49e6, rel=0.03)
    finding = next(finding for finding in analysis.findings if finding.id == "host_bound")
    assert finding.title.endswith("at code that holds the interpreter lock between train.py:20 and train.py:1")
    assert finding.host is not None and finding.host.state == "running" and "between these lines" in finding.advice
    same = analyze(unseen_trace(0, hole), whole=True).tables["lines"].rows  # the same line before and after
    assert [row.place for row in same] == ["train.py:1"]


def test_late_stacks_do_not_name_the_time_before_a_launch() -> None:
    """While a thread holds the lock, nsys writes for each missed moment the stack that it sees at the end."""
    ms = 1_000_000
    seen_in_time = [(at * ms, at * ms, 0, 0, False, 3) for at in range(50, 500)]
    late = [(at * ms, at * ms, 0, 0, True, 1) for at in range(500, 950)]
    lines = analyze(host_bound_trace([*seen_in_time, *late], []), whole=True).tables["lines"].rows
    assert [row.line for row in lines] == [21]
    unlocked = [(*row[:4], False, row[5]) for row in late]
    lines = analyze(host_bound_trace([*seen_in_time, *unlocked], []), whole=True).tables["lines"].rows
    assert {row.line for row in lines} == {20, 21}


def test_missing_time_lasts_until_the_next_sample() -> None:
    """nsys samples at once when it gets the lock: the time before that sample belongs to the code that held it."""
    ms = 1_000_000
    at = [0, ms, 2 * ms, 10_400_000, 11_400_000, 12_400_000]
    samples = evidence([(moment, moment, 0, 0, False, 3 if moment < 3 * ms else 1) for moment in at], []).samples
    cells = sampled_cells(samples)
    hole = int((cells.stack < 0).nonzero()[0][0])
    assert (cells.start[hole], cells.end[hole], cells.start[hole + 1]) == (3 * ms, 10_400_000, 10_400_000)


def test_time_off_the_cpu_has_no_place() -> None:
    """CPU samples each ms, none while the thread is off the CPU; the GPU waits from 50 to 950 ms."""
    ms = 1_000_000
    samples = [(at * ms, at * ms, 0, None, None, 2) for at in (*range(50, 61), *range(940, 950))]
    trace = host_bound_trace(samples, [(60_200_000, 939_900_000, "off_cpu", "futex", 0)])
    lines = {row.line: row.idle_ns for row in analyze(trace, whole=True).tables["lines"].rows}
    assert lines == {20: 10_200_000 + 10_100_000}
