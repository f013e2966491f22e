"""Compute reference figures of a capture with plain SQL and sorting, without traceview.

python benchmarks/plain_truth.py REPORT.sqlite [RANGE]
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
WORK = {name: f"CUPTI_ACTIVITY_KIND_{name.upper()}" for name in ("kernel", "memcpy", "memset")}
BLOCKING = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cuCtxSynchronize")
BLOCKING += ("cuStreamSynchronize", "cuEventSynchronize")

COMMUNICATION = ("nccl", "rccl", "nvshmem", "mscclpp")


@dataclass(frozen=True, slots=True)
class Truth:
    """Reference figures: times in ns, summed over GPUs."""

    hidden_ns: int  # host-to-device copies during compute kernels (all kernels but COMMUNICATION)
    idle_ns: int  # without kernel, copy or memset, from the first to the last operation
    sync_ns: int  # in the calls of BLOCKING
    sync_some_ns: int  # only in cudaDeviceSynchronize and cudaStreamSynchronize
    launched: int  # kernels, copies and memsets whose launch began inside a range of that name
    launched_kernels: int
    kernel_ns: int  # sum over all kernels


def truth(report: Path, name: str) -> Truth:
    """Compute the figures of a capture; `name` is the name of an NVTX range."""
    export = sqlite3.connect(f"{report.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    tables = {item for (item,) in export.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    work = {kind: _rows(export, table) for kind, table in WORK.items() if table in tables}
    everything = np.concatenate(list(work.values()))
    kernels = work.get("kernel", everything[:0])
    others = " AND ".join(f"lower(value) NOT LIKE '{item}%'" for item in COMMUNICATION)
    compute = _rows(export, f"{WORK['kernel']} JOIN StringIds ON id = shortName", f"WHERE {others}")
    copies = _rows(export, WORK["memcpy"], "WHERE copyKind = 1") if "memcpy" in work else everything[:0]
    hidden = idle = 0
    for device in np.unique(everything[:, 2]):
        on = [item[item[:, 2] == device] for item in (copies, compute, everything)]
        hidden += _both(on[0], on[1])
        idle += int(on[2][:, 1].max() - on[2][:, 0].min()) - _both(on[2], on[2])
    open_then = {kind: _launched(export, WORK[kind], name) for kind in work}
    blocked = [_in_calls(export, names) for names in (BLOCKING, BLOCKING[:2])]
    export.close()
    kernel_ns = int((kernels[:, 1] - kernels[:, 0]).sum())
    return Truth(hidden, idle, *blocked, sum(open_then.values()), open_then.get("kernel", 0), kernel_ns)


@dataclass(frozen=True, slots=True)
class TracedTruth:
    """Reference figures of a torch.profiler trace: times in ns, summed over GPUs."""

    idle_ns: int  # without kernel, copy or memset, from the first to the last operation
    compute_ns: int  # with a kernel that is not of COMMUNICATION
    exposed_communication_ns: int  # with such a kernel, and without the others
    exposed_copies_ns: int  # with a copy, and without a kernel


def traced_truth(trace: Path) -> TracedTruth:
    """Compute the figures of a trace."""
    data = trace.read_bytes()
    text = gzip.decompress(data) if trace.suffix == ".gz" else data
    events = [event for event in json.loads(text, parse_float=Decimal)["traceEvents"] if "cat" in event]
    kinds = {
        "communication": [event for event in events if event["cat"] == "kernel" and _communicates(event)],
        "compute": [event for event in events if event["cat"] == "kernel" and not _communicates(event)],
        "copies": [event for event in events if event["cat"] == "gpu_memcpy"],
        "memsets": [event for event in events if event["cat"] == "gpu_memset"],
    }
    work = {kind: np.array(list(map(_times_of, rows)), np.int64).reshape(-1, 3) for kind, rows in kinds.items()}
    idle = compute = communication = copies = 0
    for device in np.unique(np.concatenate(list(work.values()))[:, 2]):
        on = {kind: rows[rows[:, 2] == device] for kind, rows in work.items()}
        every, kernels = np.concatenate(list(on.values())), np.concatenate([on["compute"], on["communication"]])
        idle += int(every[:, 1].max() - every[:, 0].min()) - _both(every, every)
        compute += _both(on["compute"], on["compute"])
        communication += _both(on["communication"], on["communication"]) - _both(on["communication"], on["compute"])
        copies += _both(on["copies"], on["copies"]) - _both(on["copies"], kernels)
    return TracedTruth(idle, compute, communication, copies)


def _communicates(event: dict[str, Any]) -> bool:
    return str(event["name"]).lower().startswith(COMMUNICATION)


def _times_of(event: dict[str, Any]) -> tuple[int, int, int]:
    start, length = Decimal(event["ts"]), Decimal(event["dur"])
    return int(start * 1000), int((start + length) * 1000), int(event["args"]["device"])


def _in_calls(export: sqlite3.Connection, names: tuple[str, ...]) -> int:
    """Return the time in API calls of these names. Suffixes such as _v3020 are ignored."""
    [(total,)] = export.execute(
        "SELECT coalesce(sum(end - start), 0) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId "
        f"WHERE substr(value, 1, instr(value || '_', '_') - 1) IN ({', '.join('?' * len(names))})",
        names,
    )
    return int(total)


def _rows(export: sqlite3.Connection, table: str, where: str = "") -> Times:
    rows = export.execute(f"SELECT start, end, deviceId FROM {table} {where}").fetchall()
    return np.array(rows, np.int64).reshape(-1, 3)


def _both(left: Times, right: Times) -> int:
    """Return the time during which both an interval of `left` and one of `right` are open."""
    at = np.concatenate([left[:, 0], left[:, 1], right[:, 0], right[:, 1]])
    sizes = (len(left), len(left), len(right), len(right))
    steps = [np.repeat(np.array(signs), sizes) for signs in ((1, -1, 0, 0), (0, 0, 1, -1))]
    order = np.argsort(at, kind="stable")
    running = [np.cumsum(step[order]) > 0 for step in steps]
    return int(np.diff(at[order])[(running[0] & running[1])[:-1]].sum())


def _launched(export: sqlite3.Connection, table: str, name: str) -> int:
    """Return the number of rows launched inside a range of that name in their process."""
    ranges = export.execute(
        "SELECT globalTid >> 24, start, end FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
        "WHERE eventType IN (59, 60) AND end IS NOT NULL AND coalesce(text, value) = ?",
        (name,),
    ).fetchall()
    launches = export.execute(
        f"SELECT call.globalTid >> 24, call.start FROM {table} AS work JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call "
        "ON call.correlationId = work.correlationId AND call.globalTid >> 24 = work.globalPid >> 24"
    ).fetchall()
    opened, calls = (np.array(rows, np.int64).reshape(-1, width) for rows, width in ((ranges, 3), (launches, 2)))
    count = 0
    for process in np.unique(opened[:, 0]):
        mine, at = opened[opened[:, 0] == process], calls[calls[:, 0] == process, 1]
        begun = np.searchsorted(np.sort(mine[:, 1]), at, "right")
        count += int((begun > np.searchsorted(np.sort(mine[:, 2]), at, "right")).sum())
    return count


if __name__ == "__main__":
    print(truth(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "backward"))
