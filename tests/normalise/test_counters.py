"""Names, units, devices and times of GPU metrics. The names are those of nsys's metric sets and of public captures."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.model.sizes import GPU_METRICS
from traceview.normalise.api import Links
from traceview.normalise.devices import Devices
from traceview.normalise.sizes import gpu_metric_frame, memory_frame, metric_column
from traceview.normalise.threads import Threads
from traceview.pipeline import open_trace
from traceview.read import raw

TYPE = 281_479_271_677_952
NAMES = {
    "SM Active": "sm_active",
    "SMs Active [Throughput %]": "sm_active",
    "SM Issue Active": "sm_issue",
    "Tensor Active [Throughput %]": "tensor_active",
    "Tensor Active / FP16 Active": None,  # of Turing: also other work in half precision
    "Compute Warps In Flight": "warps",
    "Compute Warps in Flight [Avg]": None,
    "Compute Warps in Flight [Throughput %]": "warps",
    "DRAM Read Throughput": "dram_read",
    "DRAM Write Bandwidth [Throughput %]": "dram_write",
    "PCIe RX Throughput [Throughput %]": "pcie_rx",
    "PCIe Write Throughput": "pcie_tx",
    "PCIe Read Requests to BAR1 [Requests]": None,
    "NVLink RX Responses User Data [Throughput %]": "nvlink_rx",
    "NVLink bytes transmitted": "nvlink_tx",
    "GPC Clock Frequency [MHz]": "gpc_clock_mhz",
    "": None,
}


@pytest.mark.parametrize(("name", "column"), NAMES.items())
def test_names_of_metrics(name: str, column: str | None) -> None:
    assert metric_column(name) == column


def devices(*ordinals: int) -> Devices:
    """Return devices of process 7 with these ordinals."""
    pairs = {"process": [7] * len(ordinals), "deviceId": list(ordinals), "device": list(range(len(ordinals)))}
    schema = {"process": pl.Int32, "deviceId": pl.Int64, "device": pl.Int32}
    frame = pl.DataFrame({"id": [f"GPU {one}" for one in ordinals], "clock_offset": [0 for _ in ordinals]})
    return Devices(frame, pl.DataFrame(pairs, schema=schema))


def frame_of(
    rows: list[tuple[int, int, str, int]], used: Devices, **others: pl.DataFrame
) -> list[dict[str, int | None]]:
    """Return the frame of samples: timestamp, number of the GPU, name of the metric, value."""
    metrics = list(dict.fromkeys((gpu, name) for _, gpu, name, _ in rows))
    names = pl.DataFrame(
        [(TYPE + gpu, number, name) for number, (gpu, name) in enumerate(metrics)],
        schema={"typeId": pl.Int64, "metricId": pl.Int64, "metricName": pl.String},
        orient="row",
    )
    samples = pl.DataFrame(
        [(at, TYPE + gpu, metrics.index((gpu, name)), value) for at, gpu, name, value in rows],
        schema=dict.fromkeys(("timestamp", "typeId", "metricId", "value"), pl.Int64),
        orient="row",
    )
    frame = gpu_metric_frame({raw.GPU_METRICS: samples, raw.GPU_METRIC_NAMES: names, **others}, used)
    assert frame.schema == pl.Schema(GPU_METRICS)
    return [{key: value for key, value in row.items() if value is not None} for row in frame.iter_rows(named=True)]


def test_parts_of_nvlink_add_up_and_clocks_have_32_bits() -> None:
    parts = [f"NVLink TX {kind} {data} Data" for kind in ("Requests", "Responses") for data in ("Protocol", "User")]
    rows = [(at, 0, name, 5) for at in (0, 100) for name in parts]
    # The first sample of a public capture on an RTX 3090: 2330513255 Hz in GENERIC_EVENTS, negative in GPU_METRICS.
    rows += [(at, 0, "GPC Clock Frequency", 2_330_513_255 - (1 << 32)) for at in (0, 100)]
    rows += [(0, 0, "SM Active", -1), (100, 0, "SM Active", 100)]  # -1 is damage
    first, second = frame_of(rows, devices(3))
    assert first == {"device": 0, "start": 0, "end": 100, "nvlink_tx": 20, "gpc_clock_mhz": 2330}
    assert second == first | {"start": 100, "end": 200, "sm_active": 100}


def test_sample_before_lost_ones_is_short() -> None:
    rows = [(at, 0, "SM Active", 50) for at in (0, 100, 200, 900, 1000, 1100)]
    assert [(row["start"], row["end"]) for row in frame_of(rows, devices(0))] == [
        *((0, 100), (100, 200), (200, 400), (900, 1000), (1000, 1100), (1100, 1200))
    ]


def test_gpus_are_found_by_their_number_on_the_machine() -> None:
    rows = [(at, gpu, "SM Active", 10 * gpu) for at in (0, 100) for gpu in (4, 5, 6)]
    used = pl.DataFrame({"gpuId": [6, 5], "cudaId": [0, 1], "pid": [7, 7]})
    found = frame_of(rows, devices(0, 1), TARGET_INFO_CUDA_DEVICE=used)
    assert [(row["device"], row["sm_active"]) for row in found] == [(0, 60), (0, 60), (1, 50), (1, 50)]
    listed = pl.DataFrame({"id": [4, 5, 6], "cuDevice": [0, 1, 2]})
    assert {row["sm_active"] for row in frame_of(rows, devices(1), TARGET_INFO_GPU=listed)} == {50}
    assert frame_of(rows, devices(0)) == []  # which of three GPUs did the work is unknown
    assert len(frame_of([row for row in rows if row[1] == 5], devices(0))) == 2


PROCESS = 7 << 24
DEVICES = Devices(
    pl.DataFrame(),
    pl.DataFrame({"process": [7], "deviceId": [0], "device": [0]}, schema_overrides={"process": pl.Int32}),
)
EVENTS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.sampled_from([0, 1])), max_size=30)


def memory_of(events: list[tuple[int, int, int]]) -> pl.DataFrame:
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
    frame = memory_of(events)
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
