"""Select the iterations to model, and measure the time per iteration that predictions are compared with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.model.analysis import Analysis, Iteration, Iterations, IterationSummary, NotMeasured, Spread
from traceview.model.trace import EVERYTHING, Trace, Window
from traceview.replay.graph import NEVER, Codes

WHOLE_RUN = "run"  # IterationSummary.source of a run without iterations, which is modelled as one
MAX_RUN = 40_000  # operations of such a run
MAX_OPERATIONS = 12_000  # in a model, so that a replay takes about 0.1 s
LATE_FACTOR = 1.5  # leading iterations that take longer than this times the median are skipped
MIN_ITERATIONS = 3  # for a meaningful median
MAX_ITERATIONS = 20  # in a model: two periods of the usual ten steps between synchronizations
FEW_OPERATIONS = 400  # in a model of very short iterations, more than MAX_ITERATIONS then


class LaunchedWork(NamedTuple):
    """The GPU work that a process launches in each iteration. `edges` are the start times of iterations on the host.

    `iteration` is that of the launch of each row of Trace.operations, -1 before the first one and for another process.
    `finish`, `start` and `counts` are the last end, the first start and the number of operations of each iteration.
    """

    process: int
    edges: Times
    iteration: Codes
    finish: Times
    start: Times
    counts: Times

    @classmethod
    def from_analysis(cls, analysis: Analysis, other_process: int | None = None) -> LaunchedWork | None:
        """Collect the work of the iterations' process, or of another one in their times; None without iterations."""
        iterations = modelled_iterations(analysis)
        if isinstance(iterations, NotMeasured):
            return None
        process, each = iterations.process_id if other_process is None else other_process, iterations.per_iteration
        edges = np.array([*(item.start_ns for item in each), each[-1].end_ns], np.int64)
        iteration = _iteration_of_operations(analysis.trace, process, edges)
        times = _iteration_times(analysis.trace, iteration, iterations.count)
        return cls(process, edges, iteration, *times)


class Selection(NamedTuple):
    """Iterations [first, last) of the work are counted and [begin, last) modelled.

    `thread` annotates the iterations or, without ranges, is the main thread. `measured_ns` is Iterations.time_ns, the
    mean over the `steady` iterations.
    """

    work: LaunchedWork
    range: str
    summary: IterationSummary
    thread: int
    begin: int
    first: int
    last: int
    steady: int
    measured_ns: int


def select(analysis: Analysis, operations: int = MAX_OPERATIONS, work: LaunchedWork | None = None) -> Selection | str:
    """Return the iterations whose time is closest to the mean of the capture, or the reason why there are none.

    They have at most `operations` operations if one iteration does not have more. `work` saves collecting the work of
    the iterations again, or is that of another process, for example of another rank.
    """
    iterations = modelled_iterations(analysis)
    if isinstance(iterations, NotMeasured):
        return iterations.reason
    work = work or LaunchedWork.from_analysis(analysis)
    assert work is not None, "there are iterations"
    trace, process = analysis.trace, work.process
    finish, start, counts = work.finish, work.start, work.counts
    steady = np.flatnonzero(counts > 0)
    steady = steady[steady >= iterations.skipped]
    if not len(steady):
        return "no GPU work was launched inside the iterations"
    first, last = _first_steady(finish, start, int(steady[0]), int(steady[-1]) + 1), int(steady[-1]) + 1
    if not first and last > 2:
        first = 1  # counted iterations follow a modelled one
    chosen = _closest_to_mean(finish, counts, first, last, iterations.time_ns, operations)
    return Selection(
        work=work,
        range=iterations.range,
        summary=IterationSummary.build(iterations),
        thread=_main_thread(trace, process, iterations)
        if iterations.source != "range" or process != iterations.process_id
        else iterations.thread,
        begin=max(chosen[0] - 1, 0),
        first=chosen[0],
        last=chosen[1],
        steady=iterations.count - iterations.skipped,
        measured_ns=max(iterations.time_ns, 1),
    )


def modelled_iterations(analysis: Analysis) -> Iterations | NotMeasured:
    """Return the iterations of a run; without any, the whole run as one, unless it has too much work to model.

    The run is that of the analysis (docs/definitions.md "The run"), from the launch of its first work.
    """
    iterations, trace = analysis.iterations, analysis.trace
    if isinstance(iterations, Iterations) or not len(trace.operations) or not len(trace.api):
        return iterations
    if len(trace.operations) > MAX_RUN:
        return NotMeasured(f"{iterations.reason}, and the whole run has more than {MAX_RUN:,} GPU operations to model")
    numbers, counts = np.unique(trace.operations["process"].to_numpy(), return_counts=True)
    process = int(numbers[np.argmax(counts)])
    work = trace.operations.filter(pl.col("process") == process)
    launched = trace.api["start"].to_numpy()[work["launch"].drop_nulls().to_numpy()]
    begin = min(analysis.run.start, int(launched.min(initial=analysis.run.start)))
    run = Window(max(begin, (trace.window or EVERYTHING).start), analysis.run.end)
    threads = trace.api["thread"].to_numpy()[work["launch"].drop_nulls().to_numpy()]
    thread = int(np.bincount(threads).argmax()) if len(threads) else 0
    return _as_iteration(run, analysis.run.length, process, thread, len(work))


def _as_iteration(run: Window, time: int, process: int, thread: int, kernels: int) -> Iterations:
    """Return a run that takes `time` ns as one iteration. Models need its times alone."""
    each = Iteration(WHOLE_RUN, run.start, run.end, False, time, *(0,) * 6, {}, 0, kernels, None)
    wall = Spread(time, time, time)
    return Iterations("the whole run", WHOLE_RUN, 1.0, time, run, (), thread, process, 1, 0, "", wall, {}, (each,))


def _main_thread(trace: Trace, process: int, iterations: Iterations) -> int:
    """Return the thread that runs the loop: the main thread if it launches work in each iteration, else the given one.

    Autograd's thread often launches more than the main thread, but does not run the loop.
    """
    is_main = ((trace.threads["process"] == process) & (trace.threads["tid"] == process)).to_numpy()
    threads = trace.api["thread"].to_numpy()[trace.operations["launch"].drop_nulls().to_numpy()]
    launches = np.bincount(threads, minlength=len(is_main)) * is_main
    main = int(np.argmax(launches)) if len(launches) else iterations.thread
    return main if len(launches) and launches[main] >= iterations.count else iterations.thread


def _iteration_of_operations(trace: Trace, process: int, edges: Times) -> Codes:
    # Number the calls by iteration, so that an operation needs one look-up. The last entry stands for no call.
    borders = np.searchsorted(trace.api["start"].to_numpy(), edges)
    numbers = np.append(np.arange(-1, len(edges) - 1, dtype=np.int32), np.int32(-1))
    of_call = np.append(np.repeat(numbers, np.diff(borders, prepend=0, append=len(trace.api))), np.int32(-1))
    iteration: Codes = of_call[trace.operations["launch"].fill_null(-1).to_numpy()]
    iteration[trace.operations["process"].to_numpy() != process] = -1
    return iteration


def _iteration_times(trace: Trace, iteration: Codes, count: int) -> tuple[Times, Times, Times]:
    """Return the last end and the first start on the GPU of each iteration, and its number of operations."""
    start, end = (trace.operations[name].to_numpy() for name in ("start", "end"))
    code = trace.operations["class"].to_physical().to_numpy()
    compute = (code == COMPUTE) | (code == COMMUNICATION)
    if not (compute & (iteration >= 0)).any():
        compute[:] = True
    # The last entry stands for operations in no iteration.
    finish, first = np.full(count + 1, NEVER), np.zeros(count + 1, np.int64)
    np.maximum.at(finish, iteration, np.where(compute, end, NEVER))
    first[iteration[::-1]] = start[::-1]  # operations are sorted by start: the first one is written last
    counts = np.bincount(iteration + 1, minlength=count + 1)[1:]
    return finish[:-1], first[:-1], np.where(finish[:-1] > NEVER, counts, 0)


def _first_steady(finish: Times, start: Times, first: int, last: int) -> int:
    """Return the first iteration after those that the GPU begins late, for example because ranks wait for each other.

    The host's ranges do not show this delay. The limit is that of the warm-up (docs/definitions.md "Iterations").
    """
    begun = np.concatenate([start[first : first + 1], finish[first : last - 1]])
    took = finish[first:last] - begun
    late = took > LATE_FACTOR * np.median(took)
    if len(took) < MIN_ITERATIONS or not late[0] or late[: len(took) - MIN_ITERATIONS].all():
        return first
    # Skip one more, because the iteration before the counted ones is modelled too.
    return first + int(np.argmin(late)) + 1


def _closest_to_mean(
    finish: Times, counts: Times, first: int, last: int, measured: int, operations: int
) -> tuple[int, int]:
    per = max(1, int(counts[first:last].mean()))
    length = int(np.clip(operations // per, 1, max(MAX_ITERATIONS, FEW_OPERATIONS // per)))
    if length >= last - first:
        return first, last
    lows = np.arange(first + 1, last - length + 1)
    means = (finish[lows + length - 1] - finish[lows - 1]) / length
    low = int(lows[np.argmin(np.abs(means - measured))])
    return low, low + length
