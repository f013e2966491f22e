"""Check the files that a command wrote."""

from __future__ import annotations

import gzip
import json
import math
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.clocks import on_host_clock, unnamed
from tests.fuzz.counted import kernels_in
from tests.fuzz.ended import Ended, run
from tests.fuzz.invariants import broken, miscounted, of_compare, of_whatif, parsed
from tests.oracle import figures
from tests.oracle.differences import differences

CONTENT = re.compile(r'<script type="application/json" id="content">(.*?)</script>', re.DOTALL)
FIGURES = ("devices", "host", "unmatched")
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def results(case: Case, ended: Ended, scratch: Path) -> list[str]:
    """Return the problems with the output of a command."""
    wrong: list[str] = [] if case.command != "info" or ended.out else ["nothing was said"]
    for out in case.outputs:
        if case.command == "export":
            wrong += _exported(out)
        elif out.suffix == ".json":
            wrong += _document(case, scratch, parsed(out.read_text(encoding="utf-8")))
        elif out.suffix == ".html":
            wrong += _page(out.read_text(encoding="utf-8"))
        else:
            wrong += _copy(case, out, scratch)
    return wrong


def _document(case: Case, scratch: Path, result: dict[str, Any]) -> list[str]:
    command = case.arguments[0]
    if command == "analyze":
        return _figures(case, result, scratch)
    if command == "whatif":
        return list(of_whatif(result))
    if command == "compare":
        wrong = list(of_compare(result, same=len(set(case.inputs)) == 1))
        return [*wrong, *_not_reversed(case, scratch, result)] if len(case.inputs) == 2 else wrong
    return []


def _not_reversed(case: Case, scratch: Path, result: dict[str, Any]) -> Iterator[str]:
    """Yield the intervals of a comparison that are not the reverse of those of the swapped captures."""
    path = scratch.with_name("back.json")
    ended = run(("compare", *map(str, reversed(case.inputs)), "--json", str(path), "--quiet"), scratch)
    if ended.code:
        yield f"refused in the other order: {ended.err}{ended.raised}"
        return
    (forth,), (back,) = result["against"], parsed(path.read_text(encoding="utf-8"))["against"]
    path.unlink()
    if (forth["time"]["low_ns"] is None) != (back["time"]["low_ns"] is None):
        yield "an interval in one order only"
    elif forth["time"]["low_ns"] is not None and forth["time"]["low_ns"] != -back["time"]["high_ns"]:
        yield f"the interval {forth['time']} is not the reverse of {back['time']}"
    low, high = forth["ratio_low"], back["ratio_high"]
    if low and high and not math.isclose(low * high, 1, rel_tol=2e-4 / min(low, high, 1)):
        yield f"the lower end of the ratio, {low}, is not the reverse of the upper end, {high}"


def _figures(case: Case, result: dict[str, Any], scratch: Path) -> list[str]:
    wrong = list(broken(result))
    if case.command == "options":
        return wrong
    if case.origin is None:
        return wrong + _uncounted(case.inputs[0], result)
    try:
        wrong += miscounted(result, case.origin)
        wrong += unnamed(result, case.origin)
        if any(note["id"] == "clocks_disagree" for note in result["notes"]):
            return wrong
        expected = figures(on_host_clock(case.origin, result, scratch))
    except (TypeError, KeyError, ValueError, OverflowError, sqlite3.Error, AttributeError):
        return wrong  # it knows real exports only
    if result["iterations"]["lost"] or result["iterations"]["apart"]:
        expected.pop("iterations", None)  # it counts all
    if not any("wrong type" in note["text"] or "no column" in note["text"] for note in result["notes"]):
        wrong += [f"against the slow computation: {line}" for line in list(differences(expected, result))[:10]]
    return wrong


def _uncounted(report: Path, result: dict[str, Any]) -> list[str]:
    """Check that each kernel is counted or counted as left out."""
    if (held := kernels_in(report)) is None:
        return []
    note_matches = [re.match(rf"([\d,]+) rows? of {KERNEL} left out", note["text"]) for note in result["notes"]]
    left_out = sum(int(item[1].replace(",", "")) for item in note_matches if item)
    events = [re.search(r"not valid JSON: \d+ repaired, (\d+) left out", note["text"]) for note in result["notes"]]
    unread = sum(int(item[1]) for item in events if item)
    counted = sum(device["kernel_count"] for device in result["devices"]) + left_out
    return (
        []
        if counted <= held <= counted + unread
        else [f"{held} kernels in the trace, {counted} counted or said to be left out"]
    )


def _exported(out: Path) -> list[str]:
    if out.is_dir():
        return list(_tables(out))
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    data = out.read_bytes()
    trace = pb.Trace.FromString(gzip.decompress(data) if out.suffix == ".gz" else data)
    return [] if trace.packet else ["an empty trace"]


def _tables(folder: Path) -> Iterator[str]:
    """Yield problems with a folder of tables: durations are end - start, causes add up to gaps."""
    import polars as pl

    for path in sorted(folder.iterdir()):
        frame = pl.read_parquet(path)
        if {"start_ns", "end_ns", "duration_ns"} <= set(frame.columns) and len(frame):
            if not frame.select((pl.col("end_ns") - pl.col("start_ns") == pl.col("duration_ns")).all()).item():
                yield f"{path.name}: a length is not its end less its start"
            if frame["duration_ns"].min() < 0:  # type: ignore[operator]
                yield f"{path.name}: a length is negative"
        if path.stem == "gaps" and len(frame):
            times = {"start_ns", "end_ns", "duration_ns"}
            causes = [name for name in frame.columns if name.endswith("_ns") and name not in times]
            if causes and not (frame.select(pl.sum_horizontal(causes)).to_series() == frame["duration_ns"]).all():
                yield "the causes of a gap do not add up to its length"


def _page(html: str) -> list[str]:
    wrong = [] if html.count("</script>") == html.count("<script") else ["a name ends a script of the page"]
    content = CONTENT.search(html)
    if content is None:
        return [*wrong, "the page has no content"]
    parsed(content[1])
    return wrong


def _copy(case: Case, out: Path, scratch: Path) -> list[str]:
    """Check that a redacted copy is a valid database with the figures of the report."""
    connection = sqlite3.connect(f"{out.absolute().as_uri()}?immutable=1", uri=True)
    sound = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    if sound != [("ok",)]:
        return [f"the copy is damaged: {sound[:3]}"]
    both = []
    for number, report in enumerate((case.inputs[0], out)):
        path = out.with_name(f"copy{number}.json")
        ended = run(("analyze", str(report), "--json", str(path), "--no-html", "--quiet"), scratch)
        both.append(json.loads(path.read_text(encoding="utf-8")) if ended.code == 0 else ended.code or ended.raised)
    if not all(isinstance(item, dict) for item in both):
        return [] if type(both[0]) is type(both[1]) else [f"one can be analyzed, the other not: {str(both)[:300]}"]
    mine, theirs = ({key: _numbers(item[key]) for key in FIGURES} for item in both)
    return [f"redacted: {line}" for line in list(differences(mine, theirs))[:5]]


def _numbers(value: Any) -> Any:
    """Drop texts: names may be cleaned, and ties may change order."""
    if isinstance(value, dict):
        return {key: _numbers(inner) for key, inner in value.items() if key != "longest"}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    return "" if isinstance(value, str) else value
