"""The merged trace of several ranks in Perfetto's trace_processor: sums, arrows and clocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.captures import sample
from tests.cli.command import Command
from tests.exporters.sums import Sums, operation_sums
from tests.exporters.test_trace_processor import COMPLAINTS, sums
from tests.exporters.trace_processor import query_rows
from tests.ranks.reports import merged, process_alone, ranks_of
from traceview.captures.export import collect
from traceview.captures.export.perfetto import _distinct_pids
from traceview.errors import RequestError
from traceview.model.fleet import Fleet
from traceview.pipeline import open_trace
from traceview.ranks.merged_trace import merged_trace

ON_THE_GPU = """
    SELECT gpu.name AS device, queue.name AS row, stage.name AS name, count(*) AS n, sum(stage.dur) AS ns
    FROM gpu_slice stage JOIN gpu_track queue ON stage.track_id = queue.id
        JOIN gpu ON EXTRACT_ARG(queue.dimension_arg_set_id, 'ugpu') = gpu.ugpu
    GROUP BY 1, 2, 3"""
CLOCKS = """
    SELECT track.name AS rank, EXTRACT_ARG(arg_set_id, 'debug.offset_ns') AS offset,
        EXTRACT_ARG(arg_set_id, 'debug.uncertainty_ns') AS uncertainty,
        EXTRACT_ARG(arg_set_id, 'debug.trace_begins_ns') AS zero
    FROM slice JOIN track ON slice.track_id = track.id WHERE slice.category = 'clock' ORDER BY 1"""
NUMBER = "EXTRACT_ARG({}.arg_set_id, 'collective')"
BETWEEN_RANKS = f"""
    SELECT count(*) AS n, sum({NUMBER.format("a")} = {NUMBER.format("b")}) AS same, min(b.ts - a.ts) AS least
    FROM flow JOIN gpu_slice a ON a.id = slice_out JOIN gpu_slice b ON b.id = slice_in"""
COLLECTIVES = f"""
    SELECT {NUMBER.format("slice")} AS number, count(*) AS ranks, min(ts) AS first, max(ts + dur) AS last
    FROM gpu_slice slice WHERE number IS NOT NULL GROUP BY 1 ORDER BY 1"""
PROCESSES = "SELECT pid, name FROM process WHERE pid > 0 ORDER BY name"


def written(paths: list[Path], fleet: Fleet, folder: Path) -> Path:
    out = folder / "all.pftrace"
    with out.open("wb") as file:
        file.writelines(merged_trace(paths, fleet, lambda _report: None))
    return out


def test_four_ranks(slow_host: Fleet, tmp_path: Path) -> None:
    paths = ranks_of("slowhost")
    queries = [COMPLAINTS, ON_THE_GPU, CLOCKS, BETWEEN_RANKS, COLLECTIVES, PROCESSES]
    complaints, gpu, clocks, ((between),), collectives, processes = query_rows(
        written(paths, slow_host, tmp_path), queries
    )
    labels = [rank.label for rank in slow_host.ranks]
    assert complaints == []
    wanted: Sums = {}
    for path, label in zip(paths, labels, strict=True):
        of_rank = operation_sums(open_trace(path))
        wanted |= {(f"{label} {device}", *key): value for (device, *key), value in of_rank.items()}
    assert sums(gpu) == wanted
    assert [(row["rank"], row["offset"], row["uncertainty"]) for row in clocks] == [
        (label, clock.offset, clock.uncertainty) for label, clock in zip(labels, slow_host.clocks, strict=True)
    ]
    # An arrow leads from each rank of a collective to the next one that arrives.
    kinds = sum(len(group.kind) for group in slow_host.times)
    assert between["n"] == between["same"] == 3 * kinds and between["least"] >= 0
    zero = clocks[0]["zero"]
    expected = [
        (number, 4, first - zero, last - zero)
        for number, (first, last) in enumerate(
            (int(start[:, place].min()), int(end[:, place].max()))
            for start, end in ((group.start, group.end) for group in slow_host.times)
            for place in range(start.shape[1])
        )
    ]
    assert [tuple(row.values()) for row in collectives] == expected
    assert len({row["pid"] for row in processes}) == len(processes) == 4
    assert all(row["name"].startswith(label) for row, label in zip(processes, labels, strict=True))


def test_known_offset(tmp_path: Path) -> None:
    """The processes of one report, on clocks 3 s apart: every collective must come back to its place."""
    shift = 3_000_000_000
    source = sample("ddp2.sqlite")
    paths = [
        process_alone(source, tmp_path / "rank0.sqlite", 701),
        process_alone(source, tmp_path / "rank1.sqlite", 702, shift=shift),
    ]
    fleet = merged(paths)
    error = fleet.clocks[1].offset - shift
    assert abs(error) <= (fleet.clocks[1].uncertainty or 0)
    complaints, rows = query_rows(
        written(paths, fleet, tmp_path),
        [COMPLAINTS, "SELECT ts, dur FROM gpu_slice WHERE name GLOB 'nccl*' ORDER BY dur, ts"],
    )
    frame = open_trace(source).operations.filter(open_trace(source).operations["class"] == "communication")
    zero = min(int(clock.to_common(np.zeros(1, np.int64))[0]) for clock in fleet.clocks)
    off = {0: -zero, 1: -zero - error}
    true = sorted(
        (end - start, start + off[device]) for start, end, device in frame.select("start", "end", "device").iter_rows()
    )
    assert complaints == []
    assert [(row["dur"], row["ts"]) for row in rows] == true


def test_ranks_of_one_report(tmp_path: Path, two_in_one: Fleet, traceview: Command) -> None:
    out = tmp_path / "one.pftrace"
    assert traceview("export", sample("ddp2.sqlite"), "--format", "perfetto", "-o", out).code == 0
    complaints, ((between),), collectives = query_rows(out, [COMPLAINTS, BETWEEN_RANKS, COLLECTIVES])
    expected = [
        (2, int(start[:, place].min()), int(end[:, place].max()))
        for start, end in ((group.start, group.end) for group in two_in_one.times)
        for place in range(start.shape[1])
    ]
    assert complaints == [] and between["n"] == between["same"] == len(expected)
    assert [tuple(row.values())[1:] for row in collectives] == expected


def test_command(tmp_path: Path, traceview: Command) -> None:
    alone = [tmp_path / f"rank{process}.sqlite" for process in (701, 702)]
    for path in alone:
        process_alone(sample("ddp2.sqlite"), path, int(path.stem[4:]))
    (tmp_path / "rank9.sqlite").write_text("no report")
    code, out, error = traceview("export", str(tmp_path / "rank*.sqlite"), "--format", "perfetto")
    assert (code, out.splitlines()[0]) == (3, str(tmp_path / "all-ranks.pftrace"))
    assert "1 aligned by shared collectives" in out and "skipped rank9.sqlite" in error
    for arguments, words in (
        (["--format", "parquet"], "takes one report"),
        (["--format", "perfetto", "--device", "0"], "narrow one report"),
    ):
        code, out, error = traceview("export", *alone, *arguments)
        assert (code, out) == (2, "") and error.count("\n") == 1 and words in error


def test_equal_process_numbers_stay_apart() -> None:
    contents, used = collect(open_trace(sample("serial.sqlite"))), set[int]()
    first, second = (_distinct_pids(contents, used) for _ in range(2))
    assert all(process == pid for process, pid in first.items())
    assert not set(first.values()) & set(second.values())


def test_unknown_clock_is_refused() -> None:
    paths = [sample("dual.sqlite"), sample("quad.sqlite")]
    with pytest.raises(RequestError, match="cannot be compared"):
        next(merged_trace(paths, merged(paths), lambda _report: None))
