"""Tests of the rules on copies: pageable, on the stream of kernels, exposed."""

from __future__ import annotations

from tests.made_trace import made_trace
from tests.rules.helpers import MS, findings, with_calls, with_memory
from traceview.rules.exposed_copies import exposed_copies
from traceview.rules.pageable_copies import pageable_copies
from traceview.rules.shared_stream import shared_stream

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
    trace = with_memory(made_trace(WORK, CALLS), "pageable", 100_000_000)
    (finding,) = findings(
        with_calls(trace, ["cudaMemcpyAsync", "launch", "cudaStreamSynchronize"]), pageable_copies
    )
    assert finding.cost_ns == 9 * MS + (1 * MS - 1000)
    assert finding.severity == "high"
    assert "(100 MB h2d) block the host for 10.0 ms" in finding.title
    assert "cudaStreamSynchronize looks like the cause, but blocks the host for only 100 µs" in finding.advice
    assert "pin_memory=True" in finding.code
    assert "was slower in measurements" in finding.advice
    assert finding.evidence[0].start_ns == 1 * MS


def test_small_pageable_copies_are_not_pinned() -> None:
    (finding,) = findings(with_memory(made_trace(WORK, CALLS), "pageable", 4), pageable_copies)
    assert "4 bytes on average" in finding.advice
    assert "pin_memory" not in finding.code


def test_pinned_copy_is_not_pageable() -> None:
    assert findings(made_trace(WORK, CALLS), pageable_copies) == ()


def test_copy_on_compute_stream() -> None:
    (finding,) = findings(made_trace(WORK, CALLS), shared_stream)
    assert finding.cost_ns == 9 * MS
    assert "run on stream 0, the stream of the kernels" in finding.title


def test_copy_on_its_own_stream_is_partly_exposed() -> None:
    work = [
        (0, 6 * MS, "compute", 0, None),
        (4 * MS, 10 * MS, "copy", 1, None),
        (10 * MS, 11 * MS, "compute", 0, None),
    ]
    assert findings(made_trace(work), shared_stream) == ()
    (finding,) = findings(made_trace(work), exposed_copies)
    assert (finding.id, finding.cost_ns) == ("exposed_h2d", 4 * MS)
    assert "66.7% of their time is not hidden behind compute" in finding.title
    assert (finding.evidence[0].start_ns, finding.evidence[0].end_ns) == (6 * MS, 10 * MS)


def test_copies_are_priced_once() -> None:
    both = findings(made_trace(WORK, CALLS), shared_stream, exposed_copies)
    assert [finding.id for finding in both] == ["shared_stream"]


def test_hidden_copy_has_no_finding() -> None:
    work = [(0, 6 * MS, "compute", 0, None), (1 * MS, 5 * MS, "copy", 1, None)]
    assert findings(made_trace(work), exposed_copies, shared_stream, pageable_copies) == ()
