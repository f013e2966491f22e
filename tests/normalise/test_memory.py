"""Memory in use over time, against a dictionary of addresses."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from traceview.normalise.devices import Devices
from traceview.normalise.links import Links
from traceview.normalise.memory import memory_frame
from traceview.normalise.threads import Threads
from traceview.pipeline import open_trace
from traceview.read import raw

PROCESS = 7 << 24
DEVICES = Devices(
    pl.DataFrame(),
    pl.DataFrame({"process": [7], "deviceId": [0], "device": [0]}, schema_overrides={"process": pl.Int32}),
)
EVENTS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.sampled_from([0, 1])), max_size=30)


def frame_of(events: list[tuple[int, int, int]]) -> pl.DataFrame:
    """Return the normalised frame of events: address, bytes, operation."""
    rows = [(at, PROCESS, 0, address, size, 2, kind, 0) for at, (address, size, kind) in enumerate(events)]
    columns = ["start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType", "correlationId"]
    table = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row")
    threads = Threads(pl.Series("globalTid", [PROCESS + 7], dtype=pl.Int64))
    api = pl.DataFrame(schema={"process": pl.Int32, "correlation": pl.UInt32, "thread": pl.Int16})
    return memory_frame({raw.MEMORY: table}, DEVICES, Links.from_api(api), threads, api)


@given(EVENTS)
def test_totals_are_those_of_a_dictionary(events: list[tuple[int, int, int]]) -> None:
    held: dict[int, int] = {}
    totals = []
    for address, size, freed in events:
        held[address] = 0 if freed else size
        totals.append(sum(held.values()))
    frame = frame_of(events)
    after = dict(zip(frame["start"].to_list(), frame["total"].to_list(), strict=True))
    current, shown = 0, []
    for at in range(len(events)):
        current = after.get(at, current)
        shown.append(current)
    assert shown == totals


def test_torch_profiler_states_the_memory_of_tensors(tmp_path: Path) -> None:
    host = {"pid": 7, "tid": 7, "ph": "X"}
    events: list[dict[str, object]] = [
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 10, "dur": 2, "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 15, "dur": 5}
        | {"args": {"correlation": 1, "device": 0, "stream": 7, "context": 1}},
    ]
    for at, size, total, kind in ((11, 512, 1512, 1), (12, 4, 4, 0), (13, -512, 1000, 1)):
        sizes = {"Total Allocated": total, "Bytes": size, "Addr": 99, "Device Id": 0, "Device Type": kind}
        events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7}
            | {"ts": at, "args": sizes}
        )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    memory = open_trace(path).memory
    assert memory.select("start", "kind", "bytes", "total", "thread").rows() == [
        (1000, "tensors", 512, 1512, 0),
        (3000, "tensors", 0, 1000, 0),
    ]
