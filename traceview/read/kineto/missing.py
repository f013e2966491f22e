"""What torch.profiler does not record, said in every report: absent is neither zero nor an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from traceview.read import raw

SYNC_EVENTS = "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)"


def lacks(tables: Mapping[str, pl.DataFrame], calls: list[str], processes: int) -> Iterator[str]:
    """Yield one line for each thing that the figures do without.

    `calls` are the names of the API calls, `processes` is how many processes made them.
    """
    yield (
        "a trace of torch.profiler: ranges are those of record_function and ProfilerStep, not NVTX; never in it are "
        "ranges of threads that ran before the profiler did (unless profile_all_threads was set), copies of unified "
        "memory, calls that torch.profiler leaves out (cudaGetDevice, cudaEventQuery, most of the driver's) and which "
        "stream is the default"
    )
    if not any(len(tables[name]) for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET)):
        return
    if _whole_microseconds(tables):
        yield "times are whole microseconds, as torch wrote them until 2024: what is shorter reads 0 or 1 µs"
    if processes > 1:
        yield (
            f"calls of {processes} processes in one trace: GPU work belongs to the first whose call has its "
            "correlation id, which may repeat; analyze one trace for each process"
        )
    if raw.OVERHEAD not in tables:
        yield (
            "the idle cause `profiler` is not measured, because the trace has no overhead events: what the profiler "
            "cost counts under other causes"
        )
    if raw.SYNCHRONIZATION not in tables:
        yield (
            "event records and waits of streams are not measured, because the trace was made without them; "
            f"synchronizations are measured by their API calls; record both: profile({SYNC_EVENTS})"
        )
    elif raw.CUDA_EVENT not in tables:
        yield "event records are not measured, because the trace has none, and no wait of a stream names its own"
    if "bytes" in tables[raw.MEMCPY].columns and tables[raw.MEMCPY]["bytes"].sum() == 0 and len(tables[raw.MEMCPY]):
        yield "bytes of copies are not measured, because the trace does not say them: they read 0"
    if any(name.startswith("hip") for name in calls):
        yield "synchronizations are not measured, because the calls of HIP are not told apart: they count as `api`"


def _whole_microseconds(tables: Mapping[str, pl.DataFrame]) -> bool:
    ends = pl.concat([tables[name]["end"] for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET)])
    return len(ends) > 10 and bool((ends % 1000 == 0).all())
