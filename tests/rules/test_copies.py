"""Rules on copies: pageable, sharing a stream, exposed."""

from __future__ import annotations

from tests.made_trace import made_trace
from tests.rules.made import MS, findings, with_calls, with_memory
from traceview.rules.exposed_copies import exposed_copies
from traceview.rules.pageable_copies import pageable_copies
from traceview.rules.shared_stream import shared_stream

# A copy that its thread waits for (staging 1 ms, copying 9 ms), compute, then a synchronize of 0.1 ms.
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


def test_a_pageable_copy_pays_for_its_staging_and_its_exposed_time() -> None:
    trace = with_memory(made_trace(WORK, CALLS), "pageable", 100_000_000)
    (found,) = findings(
        with_calls(trace, ["cudaMemcpyAsync", "launch", "cudaStreamSynchronize"]), pageable_copies
    )
    assert found.cost_ns == 9 * MS + (1 * MS - 1000)
    assert found.severity == "high"
    assert "(100 MB h2d) block the host for 10.0 ms" in found.title
    assert "cudaStreamSynchronize looks guilty, but held the host for only 100 µs" in found.advice
    assert "pin_memory=True" in found.code
    assert "measured as a loss" in found.advice
    assert found.evidence[0].start_ns == 1 * MS


def test_small_pageable_copies_are_not_to_be_pinned() -> None:
    (found,) = findings(with_memory(made_trace(WORK, CALLS), "pageable", 4), pageable_copies)
    assert "4 bytes on average" in found.advice
    assert "pin_memory" not in found.code


def test_a_pinned_copy_is_no_pageable_one() -> None:
    assert findings(made_trace(WORK, CALLS), pageable_copies) == ()


def test_a_copy_on_the_stream_of_the_kernels_can_never_overlap() -> None:
    (found,) = findings(made_trace(WORK, CALLS), shared_stream)
    assert found.cost_ns == 9 * MS
    assert "run on stream 0, the stream of the kernels" in found.title


def test_a_copy_on_its_own_stream_is_exposed_only_where_nothing_computes() -> None:
    work = [
        (0, 6 * MS, "compute", 0, None),
        (4 * MS, 10 * MS, "copy", 1, None),
        (10 * MS, 11 * MS, "compute", 0, None),
    ]
    assert findings(made_trace(work), shared_stream) == ()
    (found,) = findings(made_trace(work), exposed_copies)
    assert (found.id, found.cost_ns) == ("exposed_h2d", 4 * MS)
    assert "66.7% of their time nothing computes" in found.title
    assert (found.evidence[0].start_ns, found.evidence[0].end_ns) == (6 * MS, 10 * MS)


def test_what_shares_a_stream_is_not_paid_again_as_exposed() -> None:
    both = findings(made_trace(WORK, CALLS), shared_stream, exposed_copies)
    assert [one.id for one in both] == ["shared_stream"]


def test_a_hidden_copy_is_no_finding() -> None:
    work = [(0, 6 * MS, "compute", 0, None), (1 * MS, 5 * MS, "copy", 1, None)]
    assert findings(made_trace(work), exposed_copies, shared_stream, pageable_copies) == ()
