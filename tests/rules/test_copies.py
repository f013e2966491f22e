"""Tests of the rules on copies: pageable, on the stream of kernels, exposed."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.made_trace import made_trace
from tests.rules.helpers import MS, findings, in_training, iterations, with_calls, with_memory
from traceview.model.program import Program
from traceview.model.trace import OPERATIONS
from traceview.rules import own_rules
from traceview.rules.copies import copy_bound, exposed_copies, pageable_copies, shared_stream
from traceview.rules.host_bound import host_bound
from traceview.rules.queues import unknown_launch

# A blocking copy (1 ms staging, 9 ms copying), 4 ms of compute, then a synchronize call of 0.1 ms.
CALLS = [
    (0, 10 * MS, "blocking_copy", 0),
    (10 * MS, 11 * MS, "api", 0),
    (15 * MS, 15 * MS + 100_000, "sync", 0),
]
WORK = [
    (0, 1000, "compute", 0, None),
    (1 * MS, 10 * MS, "copy", 0, 0),
    (11 * MS, 15 * MS, "compute", 0, 1),
]


def test_pageable_copy_costs_staging_and_exposed_time() -> None:
    trace = in_training(with_memory(made_trace(WORK, CALLS), "pageable", 100_000_000))
    (finding,) = findings(with_calls(trace, ["cudaMemcpyAsync", "launch", "cudaStreamSynchronize"]), pageable_copies)
    # 9 ms of copying, 1 ms of staging, and 1 ms until the kernel starts.
    assert finding.cost_ns == 9 * MS + (1 * MS - 1000) + 1 * MS
    assert finding.severity == "high"
    assert "(100 MB h2d) blocks the host for 10.0 ms" in finding.title
    assert "cudaStreamSynchronize looks like the cause, but blocks the host for only 100 µs" in finding.advice
    assert "Pin memory that is copied again" in finding.advice
    assert finding.remedy == "Pin a buffer only if it is copied again: pinning costs what one copy saves."
    assert finding.evidence[0].start_ns == 1 * MS


def test_small_pageable_copies_are_not_pinned() -> None:
    (finding,) = findings(with_memory(made_trace(WORK, CALLS), "pageable", 4), pageable_copies)
    assert "4 B on average" in finding.advice
    assert "pin_memory" not in finding.code


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("h2d", "Gather small copies, or pass scalars as arguments."),
        ("d2h", "Read results later, or keep them on the GPU."),
    ],
)
def test_remedy_of_small_copies_fits_their_direction(kind: str, remedy: str) -> None:
    trace = with_memory(made_trace(WORK, CALLS), "pageable", 4)
    is_copy = pl.col("class") == "copy"
    kinds = pl.when(is_copy).then(pl.lit(kind)).cast(OPERATIONS["kind"])
    trace = replace(trace, operations=trace.operations.with_columns(kinds.alias("kind")))
    (finding,) = findings(trace, pageable_copies)
    assert finding.remedy == remedy and "would remain" not in finding.title


def test_migrations_are_not_hidden_by_compute() -> None:
    """They move when a side touches pages, as 64 of one prefetch to the host do (`vector_prefetch` of round 12)."""
    work = [
        (0, 5 * MS, "compute", 0, None),
        *((6 * MS + at * MS, 7 * MS + at * MS, "copy", 1, None) for at in range(9)),
    ]
    trace = with_memory(made_trace(work), "managed", 2_000_000)
    kinds = pl.when(pl.col("class") == "copy").then(pl.lit("um_d2h")).cast(OPERATIONS["kind"])
    trace = replace(trace, operations=trace.operations.with_columns(kinds.alias("kind")))
    (finding,) = findings(trace, copy_bound, exposed_copies)
    assert (finding.id, finding.cost_ns) == ("exposed_um_d2h", 9 * MS) and "can hide" not in finding.title


def test_pinned_copy_is_not_pageable() -> None:
    assert findings(made_trace(WORK, CALLS), pageable_copies) == ()


def test_copy_on_compute_stream() -> None:
    (finding,) = findings(made_trace(WORK, CALLS), shared_stream)
    assert finding.cost_ns == 4 * MS + 1000  # the compute: no more of the copy can be hidden
    assert "runs on stream 0, the stream of the kernels" in finding.title
    assert "4.00 ms of compute can hide them" in finding.title


def test_copy_on_its_own_stream_is_partly_exposed() -> None:
    work = [
        (0, 6 * MS, "compute", 0, None),
        (4 * MS, 10 * MS, "copy", 1, None),
        (10 * MS, 11 * MS, "compute", 0, None),
    ]
    assert findings(made_trace(work), shared_stream) == ()
    (finding,) = findings(made_trace(work), exposed_copies)
    assert (finding.id, finding.cost_ns) == ("exposed_h2d", 4 * MS)
    assert "compute could hide 4.00 ms more" in finding.title
    assert (finding.evidence[0].start_ns, finding.evidence[0].end_ns) == (6 * MS, 10 * MS)


def test_copies_are_priced_once() -> None:
    both = findings(made_trace(WORK, CALLS), copy_bound, shared_stream, exposed_copies)
    assert [(finding.id, finding.cost_ns) for finding in both] == [
        ("exposed_copies", 9 * MS - (4 * MS + 1000)),
        ("shared_stream", 4 * MS + 1000),
    ]


def test_slow_pageable_copies_cost_what_pinning_and_compute_can_give() -> None:
    """6 ms of compute; 100 ms of copying at 5 GB/s would take 20 ms at the 25 GB/s of pinned memory."""
    work = [(0, 5 * MS, "compute", 0, None), (5 * MS, 105 * MS, "copy", 0, 0), (106 * MS, 107 * MS, "compute", 0, 1)]
    calls = [(5 * MS, 105 * MS, "blocking_copy", 0), (105 * MS, 106 * MS, "api", 0)]
    trace = with_memory(made_trace(work, calls), "pageable", 500_000_000)
    by_id = {finding.id: finding for finding in findings(trace, copy_bound, pageable_copies, exposed_copies)}
    assert by_id["exposed_copies"].cost_ns == 14 * MS
    assert by_id["pageable_copies"].cost_ns == 86 * MS + 1 * MS
    assert "from pinned memory 14.0 ms would remain" in by_id["pageable_copies"].advice


def test_copies_beyond_compute_cannot_be_hidden() -> None:
    work = [(0, 1 * MS, "compute", 0, None), (1 * MS, 10 * MS, "copy", 1, None), (10 * MS, 11 * MS, "compute", 0, None)]
    by_id = {finding.id: finding for finding in findings(made_trace(work), copy_bound, exposed_copies)}
    assert by_id["exposed_copies"].cost_ns == 7 * MS
    assert by_id["exposed_h2d"].cost_ns == 2 * MS
    assert "Copies take 9.00 ms while nothing computes, kernels 2.00 ms" in by_id["exposed_copies"].advice


def test_time_after_the_last_kernel_counts_without_iterations() -> None:
    """The user waits for it as for the rest of the run."""
    work = [(0, 10 * MS, "compute", 0, None), (12 * MS, 14 * MS, "copy", 0, 0), (16 * MS, 17 * MS, "memset", 0, 1)]
    trace = made_trace(work, [(12 * MS - 1000, 12 * MS, "api", 0), (16 * MS - 1000, 16 * MS, "api", 0)])
    result = findings(trace, exposed_copies, host_bound, unknown_launch)
    costs = {finding.id: finding.cost_ns for finding in result}
    assert costs == {"host_bound": 4 * MS - 2000, "exposed_h2d": 2 * MS, "exposed_memset": 1 * MS}


def test_copies_after_the_last_kernel_count() -> None:
    work = [(0, 1 * MS, "compute", 0, None), (2 * MS, 14 * MS, "copy", 0, None), (20 * MS, 21 * MS, "memset", 0, None)]
    every = [rule.find for rule in own_rules()]
    by_id = {finding.id: finding.cost_ns for finding in findings(made_trace(work), *every)}
    assert by_id == {
        "exposed_copies": 11 * MS,
        "exposed_memset": 1 * MS,
        "shared_stream": 1 * MS,
        "unknown_launch": 7 * MS,
    }


def test_managed_memory_after_the_last_kernel_is_the_end_of_the_run() -> None:
    """The host fills pages before the second kernel, and reads results after it: then the GPU waits for nothing."""
    work = [(0, 1 * MS, "compute", 0, None), (6 * MS, 7 * MS, "copy", 0, None), (7 * MS, 9 * MS, "compute", 0, None)]
    work += [(10 * MS, 11 * MS, "copy", 0, None), (14 * MS, 15 * MS, "copy", 0, None)]
    trace = with_memory(made_trace(work), "managed")
    kind = pl.col("kind").cast(pl.String).str.replace("h2d", "um_h2d").cast(trace.operations["kind"].dtype)
    result = findings(replace(trace, operations=trace.operations.with_columns(kind)), unknown_launch)
    assert {finding.title: finding.cost_ns for finding in result} == {
        "The GPU waits 5.00 ms for the host before it touches managed memory": 5 * MS,
        "After the last kernel the host works for 4.00 ms and reads managed memory": 4 * MS,
    }


def test_short_memset_is_not_a_finding() -> None:
    work = [(0, 5000, "compute", 0, None), (5000, 6500, "memset", 0, None), (6500, 9000, "compute", 0, None)]
    assert findings(made_trace(work), exposed_copies) == ()
    longer = [(start * 10, end * 10, *rest) for start, end, *rest in work]
    assert [finding.cost_ns for finding in findings(made_trace(longer), exposed_copies)] == [15_000]


def test_hidden_copy_has_no_finding() -> None:
    work = [(0, 6 * MS, "compute", 0, None), (1 * MS, 5 * MS, "copy", 1, None)]
    assert findings(made_trace(work), exposed_copies, shared_stream, pageable_copies) == ()


def test_results_are_read_back_on_another_stream() -> None:
    """Copies of results need no copy of the next input ahead."""
    results = with_memory(made_trace(WORK, CALLS), "pinned", 100_000_000)
    as_d2h = pl.when(pl.col("kind").is_not_null()).then(pl.lit("d2h")).cast(OPERATIONS["kind"]).alias("kind")
    results = replace(results, operations=results.operations.with_columns(as_d2h))
    (inputs,) = findings(with_memory(made_trace(WORK, CALLS), "pinned", 100_000_000), shared_stream)
    (outputs,) = findings(results, shared_stream)
    assert "cudaMemcpyHostToDevice" in inputs.code and "cudaMemcpyDeviceToHost" in outputs.code
    (outputs,) = findings(with_memory(results, "pageable", 100_000_000), pageable_copies)
    assert "cudaMemcpyDeviceToHost" in outputs.code


@pytest.mark.parametrize(("training", "copies", "named"), [(False, 8, True), (True, 8, False), (False, 7, False)])
def test_weights_copied_in_each_iteration_are_named(training: bool, copies: int, named: bool) -> None:
    """Each iteration of 10 ms has equal copies of 1 ms and a kernel of 0.1 ms."""
    starts = [step * 10 * MS + place * MS for step in range(5) for place in range(copies)]
    kernels = [(step * 10 * MS + 9 * MS, "compute") for step in range(5)]
    work = sorted([*((start, "copy") for start in starts), *kernels])
    operations = [
        (start, start + (MS if kind == "copy" else MS // 10), kind, 0, place)
        for place, (start, kind) in enumerate(work)
    ]
    calls = [(max(start - 1000, 0), start, "api", 0) for start, _ in work]
    trace = with_memory(made_trace(operations, calls, iterations(5, 10 * MS)), "pinned", 1 << 20)
    program = Program("pytorch", ("pytorch",), training=training, python=True)
    (finding,) = findings(replace(trace, program=program), copy_bound)
    assert ("if they are weights" in finding.advice) is named
