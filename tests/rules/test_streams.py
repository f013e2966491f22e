"""Tests of the rules on streams, graphs and communication."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from tests.rules.helpers import (
    MS,
    US,
    findings,
    in_training,
    notes,
    with_names,
)
from traceview.model.trace import OPERATIONS, STREAM_EVENTS, STREAMS, Trace
from traceview.pipeline import analyze
from traceview.rules.captured import whole_graphs
from traceview.rules.communication import communication_wait, exposed_communication
from traceview.rules.queues import idle_stream


def steps(count: int, other_thread: int) -> Trace:
    """Forward on stream 0, a tiny kernel on stream 1, backward on stream 0 by thread `other_thread`."""
    work, calls = [], []
    for step in range(count):
        begin = step * MS
        for start, length, stream, thread in ((0, 400, 0, 0), (402, 1, 1, 0), (410, 400, 0, other_thread)):
            at = begin + start * US
            calls.append((begin, begin, "api", thread))
            work.append((at, at + length * US, "compute", stream, len(calls) - 1))
    return made_trace(work, calls, [(i * MS, (i + 1) * MS, f"iteration {i}", 0) for i in range(count)])


def test_idle_backward_stream() -> None:
    (finding,) = findings(in_training(steps(10, other_thread=1)), idle_stream)
    assert (finding.severity, finding.id) == ("low", "idle_stream")
    assert "stream 1 is almost unused: 10 of 30 kernels" in finding.title
    assert "10 of the 10 kernels that thread thread 1 launched ran on stream 0" in finding.advice
    assert finding.cost_ns == 10 * (2 + 7) * US
    assert finding.evidence[0].stream == 1


def test_idle_stream_without_autograd_thread() -> None:
    (finding,) = findings(in_training(steps(10, other_thread=0)), idle_stream)
    assert "If the stream is meant for backward" in finding.advice
    (finding,) = findings(steps(10, other_thread=0), idle_stream)
    assert "backward" not in finding.advice


def test_rarely_used_stream_has_no_finding() -> None:
    few = steps(10, other_thread=1)
    tiny = (few.operations["stream"] == 1) & (pl.Series(range(30)) > 10)
    assert findings(replace(few, operations=few.operations.filter(~tiny)), idle_stream) == ()


def test_copy_stream_has_no_finding() -> None:
    work = [(i * MS, i * MS + 800 * US, "compute", 0, None) for i in range(10)]
    work += [(i * MS, i * MS + US, "copy", 1, None) for i in range(10)]
    assert findings(made_trace(work), idle_stream) == ()


def test_iterations_without_gpu_work() -> None:
    work = [(0, MS, "compute", 0, None), (9 * MS, 10 * MS, "compute", 1, None)]
    trace = made_trace(work, [], [((2 + i) * MS, (3 + i) * MS, f"compile {i}", 0) for i in range(4)])
    (finding,) = analyze(trace, iteration="compile").findings
    assert (finding.id, finding.cost_ns) == ("unknown_launch", 4 * MS)


def test_unused_stream() -> None:
    trace = made_trace([(0, MS, "compute", 0, None)], [(0, 10, "api", 0)])
    events = pl.DataFrame(
        [["wait"] * 4, [1] * 4, [1] * 4, [9, 9, 9, 0xFFFFFFFF], [4, 5, 6, 7], [0, 0, None, 0]],  # one lost its call
        schema=dict(STREAM_EVENTS),
    )
    (note,) = notes(replace(trace, stream_events=events), idle_stream)
    assert note.id == "unused_stream" and "stream 9 (2 events)" in note.text


def test_whole_graphs_are_a_note() -> None:
    trace = made_trace([(0, 6 * MS, "compute", 0, None), (7 * MS, 8 * MS, "compute", 0, None)])
    sources = pl.Series("source", ["graph", "kernel"], dtype=OPERATIONS["source"])
    (note,) = notes(replace(trace, operations=trace.operations.with_columns(sources)), whole_graphs)
    assert "85.7% of the compute of GPU 0 is inside 1 CUDA graph launch traced as a whole; 1 kernel" in note.text
    assert notes(trace, whole_graphs) == ()


def ranks(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> Trace:
    """Collectives of two devices, each with its own process."""
    work = [
        (start, end, "communication", device, None)
        for device, collectives in enumerate((first, second))
        for start, end in collectives
    ]
    trace = made_trace(work)
    stream = pl.col("stream")
    devices = pl.concat([trace.devices, trace.devices]).with_columns(
        pl.Series("id", ["GPU 0", "GPU 1"]), pl.Series("processes", [[1], [2]], dtype=pl.List(pl.Int32))
    )
    return replace(
        trace,
        operations=trace.operations.with_columns(device=stream, process=(stream + 1).cast(OPERATIONS["process"])),
        devices=devices,
        streams=trace.streams.with_columns(
            pl.Series("device", [0, 1], dtype=STREAMS["device"]), pl.Series("process", [1, 2], dtype=pl.Int32)
        ),
    )


def test_ranks_wait_for_the_last() -> None:
    trace = ranks(first=[(8, 10), (18, 20)], second=[(0, 10), (10, 20)])
    result = findings(trace, communication_wait, exposed_communication)
    waits = [finding for finding in result if finding.id == "communication_wait"]
    assert [(wait.device, wait.cost_ns) for wait in waits] == [("GPU 1", 16)]
    assert "GPU 1 waits for GPU 0 in collectives for 16 ns of its 20 ns of communication" in waits[0].title
    assert "is the last to start 2 of 2 collectives" in waits[0].advice
    exposed = (finding for finding in result if finding.id == "exposed_communication")
    rest = {row.device: row.cost_ns for finding in exposed for row in finding.by_device}
    assert rest == {"GPU 0": 4, "GPU 1": 4}


def test_mismatched_collectives_are_not_compared() -> None:
    uneven = ranks(first=[(8, 10)], second=[(0, 10), (10, 20)])
    assert findings(uneven, communication_wait) == ()
    other = with_names(ranks(first=[(8, 10)], second=[(0, 10)]), ["AllReduce", "Broadcast"])
    assert findings(other, communication_wait) == ()


def test_stages_of_a_pipeline_need_more_micro_batches() -> None:
    """A receive from another stage cannot be hidden; an all-to-all exchange, with the same kernel, can be."""
    work = [(0, MS, "compute", 0, None), (MS, 2 * MS, "communication", 1, None), (2 * MS, 3 * MS, "compute", 0, None)]
    names = ["gemm", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "gemm"]
    (alone,) = findings(with_names(made_trace([(0, MS, "communication", 0, None)]), names[1:2]), exposed_communication)
    assert alone.remedy == "Send fewer and larger messages, or find the rank that is late."
    advice = {}
    for name in ("stage 1 forward 3", "experts"):
        trace = in_training(with_names(made_trace(work, ranges=[(0, 3 * MS, name, 0)]), names))
        (finding,) = findings(trace, exposed_communication)
        advice[name] = (finding.cost_ns, "micro-batches" in finding.remedy, "interleaved schedule" in finding.advice)
    assert advice == {"stage 1 forward 3": (MS, True, True), "experts": (MS, False, False)}


def test_hidden_communication_costs_nothing() -> None:
    hidden = made_trace([(0, MS, "compute", 0, None), (100, 5000, "communication", 1, None)])
    assert findings(hidden, exposed_communication) == ()


def test_advice_has_causes_and_ordinary_gaps_cost_nothing() -> None:
    late = analyzed(sample("exposure/one_late_copy.sqlite.xz"))
    (finding,) = (finding for finding in late.findings if finding.id == "exposed_h2d")
    assert "ms because they are launched when their result is needed and" in finding.advice
    hidden = analyzed(sample("trainer/prefetch.sqlite"))
    (finding,) = (finding for finding in hidden.findings if finding.id == "exposed_h2d")
    [copies] = [row for row in hidden.devices[0].steady.copies if row.kind == "h2d"]
    gaps = copies.exposed_causes["kernel_gap"]
    assert 2 * gaps > copies.exposed_ns  # most of what is exposed
    assert finding.cost_ns == copies.exposed_ns - gaps
    assert "in ordinary gaps between kernels, which cost nothing" in finding.advice


def test_price_of_overlap_is_a_note_from_three_hundredths_of_the_time() -> None:
    texts = [
        note.text for note in analyzed(sample("exposure/two_ddp.sqlite.xz")).notes if note.id == "price_of_overlap"
    ]
    assert len(texts) == 2 and "kernels take 5.16 ms longer beside communication than alone" in texts[0]
