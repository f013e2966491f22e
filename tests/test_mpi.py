"""Tests of MPI calls in real captures of four ranks (samples/mpi), exported by two versions of nsys."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.captures import sample
from tests.read.test_formats import figures
from tests.test_samples import texts
from traceview.captures.info import describe
from traceview.captures.redact import redact
from traceview.normalise.ranges import with_library_calls
from traceview.pipeline import open_trace
from traceview.read import raw

RING, AS_2022, AS_2024 = (sample(f"mpi/{name}.sqlite") for name in ("ring", "ring_as_2022.4", "ring_as_2024.2"))
HEAT = sample("mpi/heat.sqlite")
RANKS, STEPS = 4, 12
# The calls in ring.c.
CALLS = {
    "MPI_Irecv": 2 * RANKS * STEPS,
    "MPI_Isend": 2 * RANKS * STEPS,
    "MPI_Waitall": RANKS * STEPS,
    "MPI_Allreduce": RANKS * STEPS,
    "MPI_Init": RANKS,
    "MPI_Barrier": RANKS,
    "MPI_Finalize": RANKS,
}


def calls(path: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in figures(path)["nvtx"] if one["domain"] == "MPI"}


@pytest.mark.parametrize("path", [RING, AS_2022, AS_2024], ids=lambda path: path.stem)
def test_calls_are_ranges_of_the_mpi_domain(path: Path) -> None:
    assert {name: one["count"] for name, one in calls(path).items()} == CALLS
    assert dict(describe(path).ranges).items() >= CALLS.items()


def test_wait_for_several_messages_is_one_call() -> None:
    with closing(sqlite3.connect(f"{RING.as_uri()}?mode=ro", uri=True)) as export:
        rows = export.execute('SELECT "start", "end", globalTid, requestHandle FROM MPI_START_WAIT_EVENTS').fetchall()
    lengths = {(start, thread): end - start for start, end, thread, _ in rows}
    assert len(rows) == 4 * len(lengths)
    assert calls(RING)["MPI_Waitall"]["host_ns"] == sum(lengths.values())


def test_export_versions_have_the_same_figures() -> None:
    """nsys 2022.4 exports MPI calls as ranges, later versions as separate tables."""
    older, newer = figures(AS_2022), figures(AS_2024)
    assert older.pop("report")["schema_version"] == "3.0.0"
    assert newer.pop("report")["schema_version"] == "3.11.1"
    assert older == newer
    older_ranges, newer_ranges = (open_trace(path).ranges for path in (AS_2022, AS_2024))
    named = pl.col("name", "domain").cast(pl.String)
    assert older_ranges.with_columns(named).equals(newer_ranges.with_columns(named))


def test_calls_lie_in_the_calling_ranges() -> None:
    ranges = open_trace(RING).ranges.with_columns(pl.col("name").cast(pl.String))
    outer = ranges.filter(pl.col("name") == "exchange")
    inner = ranges.filter(pl.col("name") == "MPI_Waitall")
    inside = inner.join_where(
        outer,
        pl.col("thread") == pl.col("thread_right"),
        pl.col("start") >= pl.col("start_right"),
        pl.col("end") <= pl.col("end_right"),
    )
    assert len(inside) == RANKS * STEPS


@pytest.mark.parametrize("name", ["ring", "ring_as_2022.4"])
def test_redacted_copy_has_the_figures(tmp_path: Path, name: str) -> None:
    expected = figures(sample(f"mpi/{name}.sqlite"))
    redact(sample(f"mpi/{name}.sqlite"), tmp_path / "copy.sqlite")
    assert figures(tmp_path / "copy.sqlite") == expected


def test_calls_launch_no_gpu_work() -> None:
    found = calls(HEAT)
    assert {name: one["count"] for name, one in found.items() if one["count"] > 2} == {
        "MPI_Irecv": 2 * 2 * STEPS,
        "MPI_Isend": 2 * 2 * STEPS,
        "MPI_Waitall": 2 * STEPS,
        "MPI_Allreduce": 2 * STEPS,
    }
    with closing(sqlite3.connect(f"{HEAT.as_uri()}?mode=ro", uri=True)) as export:
        rows = export.execute("SELECT count(*), sum(end - start) FROM MPI_COLLECTIVES_EVENTS").fetchall()
    assert rows == [(found["MPI_Allreduce"]["count"], found["MPI_Allreduce"]["host_ns"])]
    assert {one["operation_count"] for one in found.values()} == {0}


def test_iterations_are_the_programs_ranges() -> None:
    answer = figures(HEAT)
    assert (answer["iterations"]["range"], answer["iterations"]["count"]) == ("step", STEPS)
    # Both ranks use one GPU, and launch kernels only inside steps.
    (device,) = answer["devices"]
    step = next(one for one in answer["nvtx"] if one["name"] == "step")
    with closing(sqlite3.connect(f"{HEAT.as_uri()}?mode=ro", uri=True)) as export:
        kernels = export.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
    assert step["kernel_count"] == device["kernel_count"] == kernels == 2 * STEPS * (1 + 15)


@pytest.mark.parametrize("path", [RING, AS_2022, AS_2024, HEAT], ids=lambda path: path.stem)
def test_samples_name_no_paths(path: Path) -> None:
    assert not [text for text in texts(path) if text.startswith("/") or "/tmp" in text or "=" in text]


def test_mpi_without_nvtx_and_with_an_open_call() -> None:
    """Hand-made: MPI without NVTX, and a capture that ends inside a call."""
    row = {"start": [5, 5, 9], "end": [7, 7, None], "globalTid": [1 << 24 | 1] * 3, "textId": [3, 3, 4]}
    tables = with_library_calls({"MPI_START_WAIT_EVENTS": pl.DataFrame(row), "StringIds": pl.DataFrame()})
    assert set(tables) == {raw.NVTX, "StringIds"}
    events = tables[raw.NVTX]
    assert Counter(events["eventType"]) == {59: 2, 75: 1}
    assert events["end"].to_list()[:2] == [7, None]
