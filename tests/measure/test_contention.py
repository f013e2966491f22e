"""The price of overlap: on hand-made timelines, and against alternating steps of real programs."""

from __future__ import annotations

from statistics import mean

from tests.captures import sample
from tests.made_trace import made_trace
from traceview.measure.activity import device_activity
from traceview.measure.contention import contention
from traceview.model.rows import Contention
from traceview.model.trace import Trace
from traceview.pipeline import open_trace

US = 1_000


def prices(trace: Trace, device: int = 0) -> tuple[Contention, ...]:
    work = device_activity(trace, device)
    assert work is not None
    return contention(trace, work)


def alternating(beside: int, alone: int, kind: str = "communication") -> Trace:
    """Kernels of 12 µs beside other work, and then others of 10 µs alone, without neighbours in common."""
    work: list[tuple[int, int, str, int, int | None]] = []
    for number in range(beside):
        start = 100 * number
        work += [(start, start + 30, kind, 1, None), (start + 5, start + 17, "compute", 0, None)]
    for number in range(alone):
        start = 100 * (beside + number)
        work.append((start, start + 10, "compute", 0, None))
    return made_trace([(start * US, end * US, *rest) for start, end, *rest in work])


def test_price_is_the_sum_over_the_instances_beside() -> None:
    total, kernel = prices(alternating(10, 12))
    assert (total.beside, total.kernel, total.count, total.alone_count) == ("communication", "(all kernels)", 10, 12)
    assert (kernel.mean_ns, kernel.alone_median_ns, kernel.contention_ns) == (12 * US, 10 * US, 20 * US)
    assert total.low_ns == total.contention_ns == total.high_ns == 20 * US


def test_copies_have_a_price_too() -> None:
    total, _ = prices(alternating(10, 12, "copy"))
    assert (total.beside, total.contention_ns) == ("copies", 20 * US)


def test_few_instances_have_no_price() -> None:
    assert prices(alternating(7, 12)) == prices(alternating(12, 7)) == ()


def test_price_of_copies_is_that_of_alternating_steps() -> None:
    trace = open_trace(sample("exposure/one_price.sqlite.xz"))
    total = prices(trace)[0]
    lengths = _by_step(trace, 0, "CUDAFunctor_add")
    measured = (mean(lengths["beside"]) - mean(lengths["alone"])) * total.count
    assert total.beside == "copies"
    assert total.low_ns <= measured <= total.high_ns


def test_price_of_a_collective_is_near_that_of_alternating_steps() -> None:
    trace = open_trace(sample("exposure/two_price.sqlite.xz"))
    total = prices(trace, 1)[0]
    lengths = _by_step(trace, 1, "")
    measured = sum(lengths["beside"]) - sum(lengths["alone"])
    # Kernels that lie partly beside the all-reduce have no price, so it is a little less.
    assert 0.9 * measured <= total.contention_ns <= measured


def _by_step(trace: Trace, device: int, name: str) -> dict[str, list[int]]:
    """Return the lengths of the kernels of one name that the ranges `beside` and `alone` launch."""
    lengths: dict[str, list[int]] = {"beside": [], "alone": []}
    ranges = [row for row in trace.ranges.iter_rows(named=True) if row["name"] in lengths]
    for row in trace.operations.iter_rows(named=True):
        if row["class"] != "compute" or row["device"] != device:
            continue
        if name not in (trace.shapes["demangled"][row["shape"]] or ""):
            continue
        at = trace.api["start"][row["launch"]]
        own = [one["name"] for one in ranges if one["start"] <= at < one["end"] and one["process"] == row["process"]]
        for step in own:  # a barrier also launches a kernel, before the range
            lengths[step].append(row["end"] - row["start"])
    return lengths
