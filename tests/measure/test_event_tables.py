"""Tables of events: their figures add up to those of the JSON."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing

import polars as pl
import pytest

from tests.captures import ROOT, analyzed, sample
from tests.made_trace import made_trace
from traceview.errors import RequestError
from traceview.measure.event_tables import EVENT_TABLES, ITERATIONS
from traceview.model.analysis import CAUSES
from traceview.model.columns import field_names
from traceview.pipeline import analyze

SAMPLES = ("dual.sqlite", "ddp2.sqlite", "scenarios/contexts.sqlite", "torch_profiler/serial.json.gz")


@pytest.mark.parametrize("name", SAMPLES)
def test_gaps_add_up_to_the_json(name: str) -> None:
    analysis = analyzed(sample(name))
    gaps, document = analysis.table("gaps"), json.loads(analysis.to_json())
    for device in document["devices"]:
        own = gaps.filter(device=device["id"])
        assert own["causes"].struct.unnest().sum().row(0, named=True) == device["steady"]["causes"]
        assert own["duration_ns"].sum() == device["steady"]["idle_ns"]
    lengths = pl.sum_horizontal(pl.col("causes").struct.field(*CAUSES))
    assert gaps.select((lengths == pl.col("duration_ns")).all()).item()
    assert gaps["start_ns"].to_list() == (gaps["end_ns"] - gaps["duration_ns"]).to_list()


def test_longest_gaps_have_the_ranges_and_operations_of_the_json() -> None:
    analysis = analyze(sample("dual.sqlite"), whole=True)
    gaps = analysis.table("gaps").sort("duration_ns", descending=True, maintain_order=True)
    longest = analysis.devices[0].gaps.longest
    shown = gaps.head(len(longest)).select("start_ns", "end_ns", "cause", "after", "range")
    assert shown.rows() == [(gap.start_ns, gap.end_ns, gap.cause, gap.next_operation, gap.range) for gap in longest]


def test_gaps_name_the_work_and_the_streams_around_them() -> None:
    work = [(0, 10, "compute", 0, 0), (15, 20, "copy", 1, 1), (30, 40, "compute", 0, 2)]
    gaps = analyze(made_trace(work, [(at, at + 1, "api", 0) for at in range(3)])).table("gaps")
    assert gaps.select("start_ns", "before", "after").rows() == [(10, "compute", "copy"), (20, "copy", "compute")]
    assert (gaps["stream_before"] == gaps["stream_after"].reverse()).all() and gaps["stream_before"].n_unique() == 2


@pytest.mark.parametrize("name", ["dual.sqlite", "ddp2.sqlite", "scenarios/contexts.sqlite"])
def test_operations_are_the_rows_of_the_capture(name: str) -> None:
    """Their streams and correlation ids are those of the export."""
    operations = analyzed(sample(name)).table("operations").filter(kind="copy")
    with closing(sqlite3.connect(sample(name))) as connection:
        copies = connection.execute(
            "SELECT streamId, correlationId, end - start, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY"
        ).fetchall()
    shown = operations.select("stream_id", "correlation_id", "duration_ns", "bytes")
    assert sorted(shown.rows()) == sorted(copies) and len(copies) > 5
    assert shown["stream_id"].max() > analyzed(sample(name)).trace.operations["stream"].max()
    assert (operations["stream"].str.extract(r"stream (\d+)").cast(pl.Int64) == operations["stream_id"]).all()


@pytest.mark.parametrize("name", SAMPLES)
def test_launches_agree_with_the_queues_of_the_json(name: str) -> None:
    analysis = analyzed(sample(name))
    launches = analysis.table("launches")
    for row, device in enumerate(json.loads(analysis.to_json())["devices"]):
        own = launches.filter(device=device["id"])
        assert len(own) == len(analysis.trace.operations.filter(device=row).drop_nulls("launch"))
        middle = own.select(pl.col("ahead", "delay_ns").quantile(0.5, "lower")).row(0)
        assert middle == (device["queue_length"]["median"], device["queue_length"]["median_delay_ns"])


@pytest.mark.parametrize("name", SAMPLES)
def test_calls_add_up_to_the_json(name: str) -> None:
    analysis = analyzed(sample(name))
    calls, host = analysis.table("calls"), json.loads(analysis.to_json())["host"]
    sums = calls.group_by("call").agg(pl.col("count", "total_ns").sum())
    for row in host["sync"]["calls"]:
        assert sums.row(by_predicate=pl.col("call") == row["api"])[1:] == (row["count"], row["blocked_ns"])
    long = analysis.table("long_calls")
    assert (long["duration_ns"] > 100_000).all()
    keys = ["call", "process_id", "thread", "kernel"]
    most = calls.filter(pl.col("longest_ns") > 100_000).group_by(keys).agg(ns=pl.col("longest_ns").max())
    assert most.sort(keys).rows() == long.group_by(keys).agg(ns=pl.col("duration_ns").max()).sort(keys).rows()


def test_iterations_are_those_of_the_json() -> None:
    analysis = analyzed(sample("dual.sqlite"))
    rows = json.loads(analysis.to_json())["iterations"]["per_iteration"]
    frame = analysis.table("iterations")
    assert frame.drop("idle").to_dicts() == [{key: row[key] for key in row if key != "idle"} for row in rows]
    assert frame["idle"].to_list() == [row["idle"] for row in rows]


def test_tables_have_the_declared_columns_without_rows_too() -> None:
    analysis = analyze(made_trace([(0, 10, "compute", 0, 0)], [(0, 1, "api", 0)]))
    for name, (table, _) in EVENT_TABLES.items():
        columns = analysis.table(name).columns
        assert columns[columns[0] == "device" :] == list(field_names(table.row_type))
    with pytest.raises(RequestError, match="no table iterations: "):
        analysis.table(ITERATIONS.name)


def test_example_of_the_docs() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    [program] = (
        code for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "gaps" in code
    )
    names: dict[str, pl.DataFrame] = {}
    exec(program.replace("train.sqlite", str(sample("dual.sqlite"))), names)
    gaps = analyzed(sample("dual.sqlite")).table("gaps")
    assert names["waits"]["duration_ns"].sum() == gaps["duration_ns"].top_k(100).sum()
    assert names["waits"]["gaps"].sum() == 100 and 0 < names["waits"]["host_ns"].sum() <= gaps["duration_ns"].sum()
