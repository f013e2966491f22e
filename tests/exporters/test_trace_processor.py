"""Perfetto's trace_processor loads an export without errors, and its sums equal the capture's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from tests.captures import ALL, sample, shared
from tests.cli.command import Command
from tests.exporters.hostile import hostile_export
from tests.exporters.sums import Sums, host_sums, idle_sums, operation_sums
from tests.exporters.trace_processor import Row, query_rows
from traceview.captures.export import collect, write
from traceview.model.stacks import SCOPE_KINDS
from traceview.model.trace import Trace
from traceview.pipeline import analyze, open_trace

COMPLAINTS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
# As the UI's GPU views find a GPU: through the dimensions of its tracks.
ON_THE_GPU = """
    SELECT gpu.name AS device, queue.name AS row, stage.name AS name, count(*) AS n, sum(stage.dur) AS ns
    FROM gpu_slice stage JOIN gpu_track queue ON stage.track_id = queue.id
        JOIN gpu ON EXTRACT_ARG(queue.dimension_arg_set_id, 'ugpu') = gpu.ugpu
    GROUP BY 1, 2, 3"""
IDLE = """
    SELECT device.name AS device, slice.name AS name, sum(slice.dur) AS ns
    FROM slice JOIN track row ON slice.track_id = row.id JOIN track device ON row.parent_id = device.id
    WHERE slice.category = 'idle' GROUP BY 1, 2"""
ON_THE_HOST = """
    SELECT CAST(thread.tid AS TEXT) AS tid, slice.name AS name, count(*) AS n, sum(slice.dur) AS ns
    FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid)
    WHERE slice.category = '{}' GROUP BY 1, 2"""
ARROWS = """
    SELECT count(*) AS n,
        sum(EXTRACT_ARG(call.arg_set_id, 'debug.correlation') = EXTRACT_ARG(stage.arg_set_id, 'correlation')) AS same
    FROM flow JOIN slice call ON call.id = slice_out JOIN gpu_slice stage ON stage.id = slice_in
    WHERE call.category = 'cuda_api'"""
THREADS = (
    "SELECT pid, tid, thread.name AS name FROM thread JOIN process USING (upid) WHERE tid NOT IN (0, pid) ORDER BY 1, 2"
)
TIMES = "SELECT ts, dur FROM gpu_slice WHERE render_stage_category = 2 ORDER BY ts, dur"
NAMES = "SELECT DISTINCT name FROM slice WHERE category IS NULL OR category != 'idle' ORDER BY 1"
GPUS = "SELECT gpu.name, vendor, model, architecture, EXTRACT_ARG(arg_set_id, 'sm_count') AS sms FROM gpu ORDER BY gpu"
LAUNCHES = """
    SELECT ts, EXTRACT_ARG(arg_set_id, 'kernel_name') AS kernel,
        EXTRACT_ARG(arg_set_id, 'kernel_demangled_name') AS demangled,
        EXTRACT_ARG(arg_set_id, 'launch.grid_size.x') AS grid_x,
        EXTRACT_ARG(arg_set_id, 'launch.grid_size.y') AS grid_y,
        EXTRACT_ARG(arg_set_id, 'launch.workgroup_size.x') AS block_x,
        EXTRACT_ARG(arg_set_id, 'launch__registers_per_thread') AS registers
    FROM gpu_slice WHERE render_stage_category = 2 ORDER BY ts, dur"""
COUNTERS = """
    SELECT track.name AS name, track.unit AS unit, gpu_id AS gpu, sum(value * length) / 1e9 AS bytes
    FROM (SELECT track_id, value, lead(ts) OVER (PARTITION BY track_id ORDER BY ts) - ts AS length FROM counter)
        JOIN gpu_counter_track track ON track.id = track_id
    GROUP BY 1, 2, 3 ORDER BY 1"""
PROCESSES = """
    SELECT DISTINCT pid, api FROM gpu_slice JOIN process USING (upid)
        JOIN (SELECT context_id, api FROM __intrinsic_gpu_context) USING (context_id)"""
FINDINGS = """
    SELECT track.name AS title, slice.name AS name, ts, dur, EXTRACT_ARG(slice.arg_set_id, 'debug.saves_ns') AS saves,
        EXTRACT_ARG(slice.arg_set_id, 'debug.finding') AS id
    FROM slice JOIN track ON slice.track_id = track.id WHERE category = 'finding' ORDER BY ts, slice.id"""


def exported(path: Path, folder: Path) -> Path:
    place = folder / "out"
    write(collect(open_trace(path)), "perfetto", place)
    return place


def sums(rows: list[Row]) -> Sums:
    return {tuple(row[name] for name in row if name not in ("n", "ns")): (row["n"], row["ns"]) for row in rows}


@pytest.mark.parametrize("name", ["ddp2.sqlite", "cudagraph.sqlite", "public/nsys2026.2_2gpu_nccl.sqlite"])
def test_sums_match_the_capture(name: str, tmp_path: Path) -> None:
    path = shared(name) if name in ALL else sample(name)
    queries = [COMPLAINTS, ON_THE_GPU, IDLE, ON_THE_HOST.format("cuda_api"), ON_THE_HOST.format("nvtx"), ARROWS]
    answers = query_rows(exported(path, tmp_path), [*queries, THREADS, TIMES])
    complaints, gpu, idle, calls, ranges, ((arrows),), threads, times = answers
    trace = open_trace(path)
    assert complaints == []
    assert sums(gpu) == operation_sums(trace)
    assert {(row["device"], row["name"]): row["ns"] for row in idle} == idle_sums(analyze(trace))
    assert sums(calls) == host_sums(trace, trace.api)
    assert sums(ranges) == host_sums(trace, trace.ranges)
    assert arrows["n"] == arrows["same"] == trace.operations["launch"].count()
    assert [tuple(row.values()) for row in threads] == named_threads(trace)
    assert [(row["ts"], row["ts"] + row["dur"]) for row in times] == kernels(trace)


def named_threads(trace: Trace) -> list[tuple[int, int, str]]:
    used = {*trace.api["thread"].to_list(), *trace.ranges["thread"].to_list()}
    rows = [trace.threads.row(row, named=True) for row in used]
    return sorted((row["process"], row["tid"], row["name"]) for row in rows if row["process"] != row["tid"])


def kernels(trace: Trace) -> list[tuple[int, int]]:
    frame = trace.operations.filter(trace.operations["source"].is_in(["kernel", "graph"])).sort("start", "end")
    return list(frame.select("start", "end").iter_rows())


def test_gpus_launch_shapes_and_counters(tmp_path: Path) -> None:
    path = sample("dual.sqlite")
    out, trace = exported(path, tmp_path), open_trace(path)
    gpus, launches, counters, processes = query_rows(out, [GPUS, LAUNCHES, COUNTERS, PROCESSES])
    device = trace.devices.row(0, named=True)
    named = (f"{device['id']} {device['name']}", "NVIDIA", device["name"], f"sm_{device['compute_capability']}")
    assert [tuple(row.values()) for row in gpus] == [(*named, str(device["sm_count"]))]
    kernels = trace.operations.filter(trace.operations["source"] == "kernel").sort("start", "end")
    shape = trace.shapes[kernels["shape"]].with_columns(kernels["start"])
    columns = ("start", "name", "demangled", "grid_x", "grid_y", "block_x", "registers")
    assert [tuple(row.values()) for row in launches] == list(shape.select(*columns).iter_rows())
    copies = trace.operations.filter(trace.operations["kind"].is_not_null()).group_by("kind").agg(pl.col("bytes").sum())
    moved = {f"{kind} copies": size for kind, size in copies.iter_rows()}
    assert {row["name"]: row["bytes"] for row in counters} == pytest.approx(moved, rel=1e-6)
    assert {(row["unit"], row["gpu"]) for row in counters} == {("B/s", 0)}
    assert [tuple(row.values()) for row in processes] == [(trace.streams["process"][0], "CUDA")]


def test_findings(tmp_path: Path, traceview: Command) -> None:
    out = tmp_path / "out.pftrace"
    assert traceview("export", sample("serial.sqlite"), "--format", "perfetto", "-o", out, "-q").code == 0
    [findings] = query_rows(out, [FINDINGS])
    wanted = Counter(
        (finding.title, place.text, place.start_ns, place.end_ns - place.start_ns, finding.gain.ns, finding.id)
        for finding in analyze(sample("serial.sqlite")).findings
        for place in finding.evidence
    )
    assert Counter(tuple(row.values()) for row in findings) == wanted and wanted


def test_ops_of_torch_profiler(tmp_path: Path) -> None:
    path = sample("torch_profiler/serial.json.gz")
    rows = query_rows(exported(path, tmp_path), [COMPLAINTS, *(ON_THE_HOST.format(kind) for kind in SCOPE_KINDS)])
    trace = open_trace(path)
    assert rows[0] == [] and rows[1]
    for kind, listed in zip(SCOPE_KINDS, rows[1:], strict=True):
        scopes = trace.scopes.filter((trace.scopes["kind"] == kind) & trace.scopes["range"].is_null())
        assert sums(listed) == host_sums(trace, scopes)


def test_hostile_names(tmp_path: Path) -> None:
    path = hostile_export(tmp_path / "hostile.sqlite")
    complaints, names = query_rows(exported(path, tmp_path), [COMPLAINTS, NAMES])
    trace = open_trace(path)
    wanted = {name for frame in (trace.operations, trace.api, trace.ranges) for name in frame["name"].cast(str)}
    assert complaints == []
    # trace_processor uses SQLite, which ends a text at NUL.
    assert {row["name"] for row in names} == {name.partition("\0")[0] for name in wanted}
