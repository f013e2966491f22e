"""CSV and Parquet tables hold the events of the capture and the figures of its analysis."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import ALL, H200, PUBLIC, ROOT, sample, shared
from tests.exporters.hostile import hostile_export
from tests.formulas import FORMULAS, INNER_FORMULAS, NO_FORMULAS
from traceview.exporters import FORMATS, collect
from traceview.exporters.tables import TABLES, escape_formulas
from traceview.measure import MEASURES
from traceview.model.analysis import CAUSES
from traceview.model.columns import field_names
from traceview.model.rows import size_text
from traceview.pipeline import analyze, open_trace
from traceview.report.json import plain_values

CSV, PARQUET = FORMATS[-2:]
EXPORTED = set(TABLES) - {"streams"}
DECLARED = {measure.table.name: measure.table for measure in MEASURES if measure.table.name in EXPORTED}


def parquet(path: Path, folder: Path) -> dict[str, pl.DataFrame]:
    PARQUET.write(collect(open_trace(path)), folder / "tables")
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


def test_csv_equals_parquet(tmp_path: Path) -> None:
    path = sample("cudagraph.sqlite")
    tables = parquet(path, tmp_path)
    CSV.write(collect(open_trace(path)), tmp_path / "csv")
    for name, frame in tables.items():
        with (tmp_path / "csv" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        assert header == frame.columns
        texts = escape_formulas(frame).with_columns(pl.all().cast(pl.String)).fill_null("")
        assert [tuple(row) for row in rows] == texts.rows()


def test_csv_hostile_names(tmp_path: Path) -> None:
    path = hostile_export(tmp_path / "hostile.sqlite")
    trace = open_trace(path)
    CSV.write(collect(trace), tmp_path / "csv")
    csv.field_size_limit(sys.maxsize)
    with (tmp_path / "csv" / "operations.csv").open(newline="", encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    wanted = [name.replace("\0", "\ufffd") for name in trace.operations["name"].cast(pl.String)]
    inner = [re.sub(r"([;\t\r\n]\s*'*)([=+@-])", r"\1'\2", name) for name in wanted]
    assert names == [f"'{name}" if name[0] in "=+-@\t\r\n'" else name for name in inner]
    assert sum(name != same for name, same in zip(names, wanted, strict=True)) == 6


@pytest.mark.parametrize("text", FORMULAS, ids=ascii)
def test_formulas_are_escaped(text: str) -> None:
    assert escape_formulas(pl.DataFrame({"a": [text]}))["a"].to_list() == ["'" + text]


@pytest.mark.parametrize(("text", "written"), INNER_FORMULAS.items(), ids=ascii)
def test_formulas_inside_of_texts_are_escaped(text: str, written: str) -> None:
    assert escape_formulas(pl.DataFrame({"a": [text]}))["a"].to_list() == [written]


@given(st.text("=+-@;\t\n\r ',\"a1|", max_size=12))
def test_no_spreadsheet_reads_a_formula(text: str) -> None:
    """No cell is a formula, whichever separator the spreadsheet uses, with and without quotes."""
    line = escape_formulas(pl.DataFrame({"a": ["x"], "b": [text]})).write_csv(quote_style="non_numeric")
    for separator in (";", "\t"):
        for row in line.splitlines():
            for cell in row.split(separator):
                assert cell.strip()[:1] not in ("=", "+", "-", "@")
    rows = list(csv.reader(line.splitlines(keepends=True)))
    assert all(cell.strip()[:1] not in ("=", "+", "-", "@") for row in rows for cell in row)


def test_other_texts_and_numbers_are_unchanged(tmp_path: Path) -> None:
    frame = pl.DataFrame({"name": NO_FORMULAS, "number": [-3] * len(NO_FORMULAS)})
    escape_formulas(frame).write_csv(tmp_path / "a.csv", quote_style="non_numeric")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list(NO_FORMULAS) and {row["number"] for row in rows} == {"-3"}


def test_escaping_is_reversible() -> None:
    texts = ["=1", "'=1", "''", "x", "", "-", "a=b", None]
    kept = escape_formulas(pl.DataFrame({"a": texts}))["a"].to_list()
    assert kept == ["'=1", "''=1", "'''", "x", "", "'-", "a=b", None]


def test_every_column_is_documented(tmp_path: Path) -> None:
    manual = (ROOT / "docs" / "export.md").read_text()
    for name, frame in parquet(sample("cudagraph.sqlite"), tmp_path).items():
        if name in DECLARED:
            declared = field_names(DECLARED[name].row_type)
            assert tuple(frame.columns) in (declared, ("device", *declared)) and f"`{name}`" in manual
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
            frame = tables[table] if table == "lines" else tables[table].filter(device=device.id).drop("device")
            wanted = [plain_values(row) for row in rows]
            texts = [
                {key: size_text(tuple(value)) if isinstance(value, list) else value for key, value in row.items()}
                for row in wanted
                if isinstance(row, dict)
            ]
            assert frame.to_dicts() == texts
