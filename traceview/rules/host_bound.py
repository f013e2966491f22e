"""The GPU waits for the host, in gaps too long for launch-bound.

Symptom: the idle cause `host`: the thread that launched the next work was in no CUDA call.
Cause: data loading, collation, logging, Python's own work; the innermost NVTX range says where.
Remedy: for data loading, workers and prefetch; in MPI, an earlier start of the transfer, or what the late rank
needs; else move the work off the launching thread, or profile it.

One finding for each of the three ranges that wait longest, one for the rest. Numbers in names are folded.
Claims the idle cause `host` of the steady time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.ledger import Idle
from traceview.rules.launch_bound import SHORT

TOP = 3
DATA = re.compile(r"data|load|batch|fetch|next|input|collat|decod|augment|read|token|sampl", re.IGNORECASE)
OPTIMIZER = re.compile(r"optim|adam|sgd", re.IGNORECASE)
WORTH = 0.01  # of the steady time: less than that in a range goes to the rest
DATA_ADVICE = (
    "Load in workers, ahead of the loop: `num_workers` near the number of free cores, "
    "`prefetch_factor` 2 to 4, `persistent_workers=True`; decode and augment there, not in the loop. "
    "It pays while the workers together deliver a batch within a step's time; if they do not, the "
    "loader's own throughput is the limit."
)
DATA_CODE = """loader = DataLoader(dataset, batch_size=..., num_workers=8, prefetch_factor=4,
                    persistent_workers=True, pin_memory=True)"""
OPTIMIZER_ADVICE = (
    "An optimizer's step is mostly Python: lists of parameters are gathered for each group and each "
    "call. `fused=True` makes it a few kernels and the least host work; "
    "`torch.compile(optimizer.step)` removes nearly all of it. Both give the same update up to "
    "rounding; fused needs parameters on the GPU in a floating-point type."
)
OPTIMIZER_CODE = "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"
MPI = re.compile(r"MPI_(?!File_)[A-Z]")
MPI_ADVICE = (
    "The launching thread is in MPI, with nothing queued on the GPU. Where it waits for another rank, "
    "that rank is late: compare the ranks. What is left is the transfer: start it early (`MPI_Irecv`, "
    "`MPI_Isend`, `MPI_Iallreduce`), launch the work that does not need it, and wait after; with a "
    "CUDA-aware MPI, hand it GPU memory."
)
MPI_CODE = """MPI_Iallreduce(&mine, &total, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
launch_what_needs_no_total(stream);
MPI_Wait(&request, MPI_STATUS_IGNORE);"""
HOST_ADVICE = (
    "The launching thread did something that is no CUDA call: Python between operations, logging, a "
    "lock, the garbage collector. Add NVTX ranges inside to find which, or sample it (`py-spy "
    "record`); then move it to another thread, do it every N steps, or do it while the GPU still has "
    "queued work."
)
HOST_CODE = "gc.disable()   # and gc.collect() every N steps, where collections show up here"


def host_bound(facts: Facts) -> Iterator[Draft]:
    """Yield the ranges in which the GPU waits longest for the host."""
    for device in facts.devices:
        yield from _drafts(facts, device)


def _drafts(facts: Facts, device: DeviceFacts) -> Iterator[Draft]:
    waits = device.waits(("host",), slice(None))
    if waits is None:
        return
    steady = device.in_steady
    rows = np.flatnonzero(device.gap_end[steady] - device.gap_start[steady] > SHORT) + steady.start
    rows = rows[waits[rows] > 0]
    names, which = facts.range_names(facts.ranges_at(device.gap_thread[rows], _middles(facts, device, rows)))
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, which, waits[rows])
    worst = sorted(zip(totals.tolist(), names, range(len(names)), strict=True), reverse=True)
    worth = [(name, at) for total, name, at in worst if total >= WORTH * device.steady.length and name]
    for name, at in worth[:TOP]:
        yield _draft(device, rows[which == at], name)
    rest = ", in no range that stands out" if len(facts.analysis.trace.ranges) else ""
    yield _draft(device, steady, "", rest)


def _middles(facts: Facts, device: DeviceFacts, rows: Times) -> Times:
    """Return the middle of each wait for a launch, which ends with the gap where the launch is not known."""
    trace = facts.analysis.trace
    start, end, operation = device.gap_start[rows], device.gap_end[rows], device.gap_operation[rows]
    if trace.api.is_empty():
        return (start + end) // 2
    launch = trace.operations["launch"].fill_null(-1).to_numpy()
    call = np.where(operation >= 0, launch[operation], -1)
    until = np.where(call >= 0, np.clip(trace.api["start"].to_numpy()[call], start, end), end)
    middle: Times = (start + until) // 2
    return middle


def _draft(device: DeviceFacts, rows: Times | slice, name: str, rest: str = "") -> Draft:
    where = f" in `{name}`" if name else rest
    data, advice, code = _remedy(name)
    return Draft(
        id="data_loading" if data else "host_bound",
        device=device,
        title=f"The GPU waits {{cost}} for the host{where}" + (": data is not ready in time" if data else ""),
        advice=advice,
        code=code,
        claims=(Idle(("host",), rows=rows),),
        place=f"the host was in {name}" if name else "the host was in no CUDA call",
    )


def _remedy(name: str) -> tuple[bool, str, str]:
    """Return whether a range of that name loads data, what to do and the code for it."""
    if MPI.match(name):
        return False, MPI_ADVICE, MPI_CODE
    if DATA.search(name):
        return True, DATA_ADVICE, DATA_CODE
    return False, *((OPTIMIZER_ADVICE, OPTIMIZER_CODE) if OPTIMIZER.search(name) else (HOST_ADVICE, HOST_CODE))
