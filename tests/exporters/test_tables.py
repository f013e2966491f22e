"""Parquet tables hold the events of the capture and the figures of its analysis."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.captures import ALL, H200, PUBLIC, ROOT, sample, shared
from traceview.captures.export import collect, write
from traceview.captures.export.tables import TABLES
from traceview.measure import MEASURES
from traceview.model.analysis import CAUSES
from traceview.model.columns import field_names
from traceview.model.rows import size_text
from traceview.pipeline import analyze, open_trace
from traceview.report.json import plain_values

DECLARED = {measure.table.name: measure.table for measure in MEASURES if measure.table.name in TABLES}


def parquet(path: Path, folder: Path) -> dict[str, pl.DataFrame]:
    write(collect(open_trace(path)), "parquet", folder / "tables")
    return {name: pl.read_parquet(folder / "tables" / f"{name}.parquet") for name in TABLES}


@pytest.mark.parametrize("name", ALL)
def test_parquet_events_and_figures(name: str, tmp_path: Path) -> None:
    path = shared(name)
    trace, tables = open_trace(path), parquet(path, tmp_path)
    analysis = analyze(trace)
    for table, frame in (("operations", trace.operations), ("api", trace.api), ("ranges", trace.ranges)):
        same = tables[table].select("start_ns", "end_ns", pl.col("name").cast(pl.String))
        assert same.rows() == frame.select("start", "end", pl.col("name").cast(pl.String)).rows()
    assert tables["devices"].select("device", "busy_ns", "idle_ns", "kernel_count").rows() == [
        (use.id, use.busy_ns, use.idle_ns, use.kernel_count) for use in analysis.devices
    ]
    for use in analysis.devices:
        gaps = tables["gaps"].filter(pl.col("device") == use.id)
        assert {cause: gaps[f"{cause}_ns"].sum() for cause in CAUSES} == use.gaps.causes
        assert (
            gaps["duration_ns"] == gaps.select(pl.sum_horizontal(f"{cause}_ns" for cause in CAUSES)).to_series()
        ).all()
        streams = tables["streams"].filter(pl.col("device") == use.id)
        assert streams.select("stream", "busy_ns").rows() == [(item.stream, item.busy_ns) for item in use.streams]


def test_tables_refer_to_each_other(tmp_path: Path) -> None:
    path = sample("ddp2.sqlite")
    tables = parquet(path, tmp_path)
    launched = tables["operations"].join(tables["api"], on="call")
    assert len(launched) == open_trace(path).operations["launch"].count()
    assert (launched["correlation"] == launched["correlation_right"]).all()
    assert set(tables["operations"]["stream"]) == set(tables["streams"]["stream"])
    assert set(tables["api"]["thread"]) <= set(tables["threads"]["thread"])
    ended = tables["gaps"].join(tables["operations"], on="operation")
    assert (ended["start_ns_right"] == ended["end_ns"]).all()


def test_every_column_is_documented(tmp_path: Path) -> None:
    manual = (ROOT / "docs" / "export.md").read_text()
    for name, frame in parquet(sample("cudagraph.sqlite"), tmp_path).items():
        if name in DECLARED:
            declared = [
                column for column in field_names(DECLARED[name].row_type) if column not in ("causes", "exposed_causes")
            ]
            keys = {"lines": (), "streams": ("stream", "device")}.get(name, ("device",))
            assert tuple(frame.columns) == (*keys, *declared) and f"`{name}`" in manual
            continue
        section = manual.split(f"### {name}\n")[1].split("\n#")[0]
        listed = [
            cell.strip(" `")
            for line in section.splitlines()
            if line.startswith("| `")
            for cell in line.split("|")[1].split(",")
        ]
        expected = [column for column in frame.columns if column not in {f"{cause}_ns" for cause in CAUSES}]
        assert [column for column in listed if column != "CAUSE_ns"] == expected


@pytest.mark.parametrize("name", [H200[3], PUBLIC[4]])
def test_declared_tables_equal_those_of_the_analysis(name: str, tmp_path: Path) -> None:
    path = shared(name)
    tables = parquet(path, tmp_path)
    analysis = analyze(path, whole=True)
    assert (len(tables["lines"]) > 0) == (name in PUBLIC)
    for table in DECLARED:
        for device in analysis.devices:
            rows = analysis.tables[table].rows if table == "lines" else device.tables[table].rows
            frame = (
                tables[table]
                if table == "lines"
                else tables[table].filter(device=device.id).drop("device", "stream", strict=False)
            )
            wanted = [plain_values(row) for row in rows]
            texts = [
                {
                    key: size_text(tuple(value)) if isinstance(value, list) else value
                    for key, value in row.items()
                    if key not in ("causes", "exposed_causes")
                }
                for row in wanted
                if isinstance(row, dict)
            ]
            assert frame.to_dicts() == texts
