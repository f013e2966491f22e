"""Tests of synchronizing calls against the definition, nanosecond by nanosecond."""

from __future__ import annotations

from hypothesis import given, settings

from tests.made_trace import made_trace
from tests.measure.gaps.test_causes import busy_class, next_after, touches, traces
from traceview.measure.activity import device_activity
from traceview.measure.sync import measure_host
from traceview.model.analysis import SyncUse
from traceview.model.trace import Trace


def expected_calls(trace: Trace, explicit: bool) -> list[tuple[int, int, int, int]]:
    found = []
    for call in trace.api.iter_rows(named=True):
        if (call["role"] == "sync") is not explicit or not (explicit or call["implicit"]):
            continue
        if trace.window is not None and not touches(call, trace.window):
            continue
        start = call["start"] if trace.window is None else max(call["start"], trace.window.start)
        end = call["end"] if trace.window is None else min(call["end"], trace.window.end)
        busy = [in_window(trace, moment) and busy_class(trace, moment) is not None for moment in range(start, end)]
        idle_at_end = not (in_window(trace, end) and busy_class(trace, end) is not None)
        follower = next_after(trace, end)
        resumes = None if follower is None else trace.operations["start"][follower]
        reachable = resumes is not None and in_window(trace, resumes)
        refill = resumes - end if idle_at_end and reachable else 0
        found.append((end - start, sum(busy), end - start - sum(busy), refill))
    return found


def in_window(trace: Trace, moment: int) -> bool:
    return trace.window is None or trace.window.start <= moment < trace.window.end


def rows(use: SyncUse) -> list[tuple[int, int, int, int]]:
    return use.frame.select("blocked", "waited", "starved", "refill").rows()


@settings(max_examples=150, deadline=None)
@given(traces())
def test_calls_by_the_nanosecond(trace: Trace) -> None:
    device = device_activity(trace, 0)
    if device is None or device.window.length == 0:
        return
    host = measure_host(trace, (device,))
    assert rows(host.sync) == expected_calls(trace, explicit=True)
    assert rows(host.implicit_sync) == expected_calls(trace, explicit=False)
    assert host.sync.blocked_ns == host.sync.waited_ns + host.sync.starved_ns
    assert sum(call.count for call in host.sync.calls) == host.sync.count


def test_waiting_for_gpu_work_has_no_cost() -> None:
    trace = made_trace(
        [(0, 100, "compute", 0, 0), (130, 200, "compute", 0, 1)],
        [(0, 2, "api", 0), (120, 125, "api", 0), (5, 105, "sync", 0)],
    )
    device = device_activity(trace, 0)
    assert device is not None
    sync = measure_host(trace, (device,)).sync
    assert (sync.blocked_ns, sync.waited_ns, sync.starved_ns, sync.refill_ns) == (100, 95, 5, 25)
