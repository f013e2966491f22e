"""Notes on a model and on predictions."""

from __future__ import annotations

from collections.abc import Sequence

from traceview.model.trace import Note, Trace
from traceview.units import duration, rate, ratio, share, time_range
from traceview.whatif.outcome import ChangedRun, RunModel, kernel_time

MIN_OVERHEAD = 0.05  # share of the iterations; less profiler overhead is not stated
UNNAMED = (
    Note(
        "unnamed_phases",
        "no range names the phases of an iteration: the host's pause before it copies a batch counts as loading, and "
        "what other threads launch as the backward pass",
        ("load", "staged", "ranks"),
    ),
)
MAX_KERNELS = 0.8  # share of the predicted time; with less time in kernels, they do not limit a change to the compute
MIN_GAIN = 0.02  # share of the measured time; a smaller gain gets a note


def gain_notes(model: RunModel, time: int, batches: int) -> tuple[str, ...]:
    """Return the gain in samples, or that there is little or none."""
    if batches > 1:
        return (f"{batches} batches a step: {ratio(batches * model.measured / time)} times the samples per second",)
    gain = 1 - time / model.measured
    if gain < -MIN_GAIN:
        return (f"alone it is {share(-gain)} slower",)
    return ("alone it gains little or nothing",) if gain < MIN_GAIN else ()


def host_notes(outcomes: Sequence[ChangedRun]) -> tuple[str, ...]:
    """Return what the kernels take if they do not limit a change to the compute; `outcomes` from best to worst."""
    least, middle, most = (kernel_time(outcome.graph) for outcome in outcomes)
    if middle > MAX_KERNELS * outcomes[1].time:
        return ()
    low, high = sorted((least, most))
    times = f"{duration(middle)} ({time_range(low, high)})"
    return (f"kernels do not limit it: they take {times}, and the host's time differs between runs",)


def _profiler_notes(model: RunModel) -> tuple[Note, ...]:
    if model.graphs:
        text = "predictions are for runs without the profiler; compare them with such runs, not with captures"
        return (Note("profiler", text),)
    return (
        Note("profiler", "host times are as measured under the profiler; without it the host is faster"),
        *_overhead_notes(model),
    )


def _overhead_notes(model: RunModel) -> tuple[Note, ...]:
    overhead = model.graph.facts.overhead
    if overhead < MIN_OVERHEAD:
        return ()
    return (Note("overhead", f"{share(overhead)} of the modelled time is profiler overhead, which predictions keep"),)


def process_notes(trace: Trace, process: int) -> tuple[Note, ...]:
    """Return a note if more than one process uses GPUs."""
    count = trace.operations["process"].n_unique()
    if count < 2:
        return ()
    return (
        Note(
            "processes",
            f"{count} processes use GPUs here; only process {process} is modelled, and its waits for the "
            "others stay as they are",
        ),
    )


def model_notes(model: RunModel) -> tuple[Note, ...]:
    """Return the rates of the model, and what it takes from the capture as it is."""
    facts = model.graph.facts
    source = "measured here" if facts.pinned_measured else "default for this GPU: no large pinned copy in the capture"
    return (
        Note(
            "rates",
            f"pinned copies at {rate(facts.pinned_rate, 1)} ({source}); {duration(facts.launch_latency)} from a "
            f"launch to its kernel, {duration(facts.kernel_gap)} between kernels",
        ),
        *_profiler_notes(model),
        *(UNNAMED if model.selection.summary.source == "period" else ()),
    )
