"""Perfetto's trace_processor loads an export without errors, and its sums equal the capture's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import ALL, sample, shared
from tests.exporters.hostile import hostile_export
from tests.exporters.sums import Sums, host_sums, idle_sums, operation_sums
from tests.exporters.trace_processor import Row, query_rows
from traceview.exporters import FORMATS, collect
from traceview.model.trace import Trace
from traceview.pipeline import analyze, open_trace

PERFETTO, CHROME = FORMATS[:2]
COMPLAINTS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
ON_THE_GPU = """
    SELECT device.name AS device, row.name AS row, slice.name AS name, count(*) AS n, sum(slice.dur) AS ns
    FROM slice JOIN track row ON slice.track_id = row.id JOIN track device ON row.parent_id = device.id
    WHERE slice.category IN ('kernel', 'communication', 'graph', 'copy', 'memset')
    GROUP BY 1, 2, 3"""
IDLE = """
    SELECT device.name AS device, slice.name AS name, sum(slice.dur) AS ns
    FROM slice JOIN track row ON slice.track_id = row.id JOIN track device ON row.parent_id = device.id
    WHERE slice.category = 'idle' GROUP BY 1, 2"""
ON_THE_HOST = """
    SELECT CAST(thread.tid AS TEXT) AS tid, slice.name AS name, count(*) AS n, sum(slice.dur) AS ns
    FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid)
    WHERE slice.category = '{}' GROUP BY 1, 2"""
CORRELATION = "EXTRACT_ARG({}.arg_set_id, 'debug.correlation')"
ARROWS = f"""
    SELECT count(*) AS n, sum({CORRELATION.format("call")} = {CORRELATION.format("work")}) AS same
    FROM flow JOIN slice call ON call.id = slice_out JOIN slice work ON work.id = slice_in
    WHERE call.category = 'cuda_api'"""
THREADS = (
    "SELECT pid, tid, thread.name AS name FROM thread JOIN process USING (upid) WHERE tid NOT IN (0, pid) ORDER BY 1, 2"
)
TIMES = "SELECT ts, dur FROM slice WHERE category IN ('kernel', 'communication', 'graph') ORDER BY ts, dur"
NAMES = "SELECT DISTINCT name FROM slice WHERE category != 'idle' ORDER BY 1"


def exported(path: Path, folder: Path, form: object = PERFETTO) -> Path:
    place = folder / "out"
    assert form in FORMATS
    form.write(collect(open_trace(path)), place)  # type: ignore[attr-defined]
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


def test_chrome_trace_times_are_exact(tmp_path: Path) -> None:
    path = sample("cudagraph.sqlite")
    query = "SELECT ts, dur FROM slice WHERE category = 'kernel' ORDER BY ts, dur"
    complaints, times = query_rows(exported(path, tmp_path, CHROME), [COMPLAINTS, query])
    assert complaints == []
    assert [(row["ts"], row["ts"] + row["dur"]) for row in times] == kernels(open_trace(path))


def test_hostile_names(tmp_path: Path) -> None:
    path = hostile_export(tmp_path / "hostile.sqlite")
    complaints, names = query_rows(exported(path, tmp_path), [COMPLAINTS, NAMES])
    trace = open_trace(path)
    wanted = {name for frame in (trace.operations, trace.api, trace.ranges) for name in frame["name"].cast(str)}
    assert complaints == []
    # trace_processor uses SQLite, which ends a text at NUL.
    assert {row["name"] for row in names} == {name.partition("\0")[0] for name in wanted}
