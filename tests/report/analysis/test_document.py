"""docs/definitions.md "JSON": every path exists, and the bytes are reproducible."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.captures import ALL, shared
from tests.report.made_analysis import bare_analysis, made_analysis
from traceview.model.analysis import CAUSES
from traceview.model.trace import Trace
from traceview.pipeline import analyze
from traceview.report.analysis import document, to_json
from traceview.report.json import Constant, Shapes, Value, indented_text, names, plain_values

CONTRACT = [
    "schema_version",
    "report.file",
    "report.nsys_version",
    "report.schema_version",
    "devices[].id",
    "devices[].process_ids",
    "devices[].window_ns",
    "devices[].busy_ns",
    "devices[].compute_ns",
    "devices[].communication_ns",
    "devices[].idle_ns",
    "devices[].copies[].kind",
    "devices[].copies[].memory",
    "devices[].copies[].count",
    "devices[].copies[].bytes",
    "devices[].copies[].busy_ns",
    "devices[].copies[].overlapped_ns",
    "devices[].copies[].exposed_ns",
    "devices[].communication.count",
    "devices[].communication.busy_ns",
    "devices[].communication.overlapped_ns",
    "devices[].communication.exposed_ns",
    "devices[].streams[].id",
    "devices[].streams[].process_id",
    "devices[].streams[].kernel_count",
    "devices[].streams[].copy_count",
    "devices[].streams[].busy_ns",
    "devices[].streams[].gap_count",
    "devices[].streams[].gap_ns",
    "devices[].gaps.count",
    "devices[].gaps.total_ns",
    "devices[].gaps.longest[]",
    "devices[].gaps.causes.profiler",
    "devices[].gaps.causes.queued",
    "devices[].gaps.causes.launch",
    "devices[].gaps.causes.sync",
    "devices[].gaps.causes.blocking_copy",
    "devices[].gaps.causes.memory",
    "devices[].gaps.causes.api",
    "devices[].gaps.causes.host",
    "devices[].gaps.causes.unknown",
    "host.sync.count",
    "host.sync.blocked_ns",
    "host.sync.waited_ns",
    "host.sync.starved_ns",
    "host.sync.calls[].api",
    "host.sync.calls[].count",
    "host.sync.calls[].blocked_ns",
    "host.implicit_sync.count",
    "host.implicit_sync.blocked_ns",
    "host.implicit_sync.waited_ns",
    "host.implicit_sync.starved_ns",
    "host.implicit_sync.calls[].api",
    "nvtx[].name",
    "nvtx[].domain",
    "nvtx[].count",
    "nvtx[].host_ns",
    "nvtx[].gpu_busy_ns",
    "nvtx[].gpu_span_ns",
    "nvtx[].kernel_count",
    "iterations.range",
    "iterations.count",
    "iterations.skipped",
    "iterations.per_iteration[]",
    "iterations.wall_ns.median",
    "iterations.wall_ns.p5",
    "iterations.wall_ns.p95",
    "findings[].id",
    "findings[].severity",
    "findings[].title",
    "findings[].evidence",
    "findings[].cost_ns",
    "findings[].advice",
    "unmatched.kernels",
    "unmatched.copies",
    "whole",
    "notes[].id",
    "notes[].text",
    "notes[].affects",
    *(
        f"devices[].steady.{name}"
        for name in (
            "window_ns",
            "kernel_count",
            "busy_ns",
            "compute_ns",
            "communication_ns",
            "exposed_h2d_ns",
            "exposed_d2h_ns",
            "exposed_communication_ns",
            "idle_ns",
            "causes.host",
        )
    ),
]
FRACTIONS = {
    *(
        f".devices[].{part}kernels[].{name}"
        for part in ("", "steady.")
        for name in ("share", "blocks_per_sm", "waves", "occupancy")
    ),
    *(f".devices[].{part}kernel_places[].share" for part in ("", "steady.")),
    *(f".devices[].{part}matrix_precisions[].{name}" for part in ("", "steady.") for name in ("share", "of_peak")),
    *(f".devices[].{part}collectives[].bus_factor" for part in ("", "steady.")),
    ".speed_of_light[].mfu",
    ".speed_of_light[].known_fraction",
    ".findings[].cost_fraction",
    ".findings[].others[].cost_fraction",
    ".findings[].unprofiled_cost_fraction",
    ".findings[].others[].unprofiled_cost_fraction",
    ".iterations.confidence",
    ".iterations.candidates[].share_fraction",
}
A_ROW = [
    "name",
    "start_ns",
    "end_ns",
    "skipped",
    "wall_ns",
    "compute_ns",
    "communication_ns",
    "exposed_h2d_ns",
    "exposed_d2h_ns",
    "exposed_communication_ns",
    "idle_ns",
    "idle",
    "blocked_ns",
    "kernel_count",
]


def reach(value: Any, path: str) -> list[Any]:
    """Return everything at a path; fails where a step of it is missing."""
    found = [value]
    for step in path.split("."):
        found = [one[step.removesuffix("[]")] for one in found]
        if step.endswith("[]"):
            assert all(isinstance(one, list) for one in found)
            found = [item for one in found for item in one]
    return found


def floats(value: Any, path: str = "") -> set[str]:
    """Return the paths of all floats."""
    if isinstance(value, dict):
        return {found for key, one in value.items() for found in floats(one, f"{path}.{key}")}
    if isinstance(value, list):
        return {found for one in value for found in floats(one, f"{path}[]")}
    return {path} if isinstance(value, float) else set()


@pytest.mark.parametrize("path", CONTRACT)
def test_every_path_of_the_contract_exists(path: str) -> None:
    assert reach(json.loads(to_json(made_analysis())), path) != []


@pytest.mark.parametrize("path", [path for path in CONTRACT if not path.startswith(("nvtx[", "findings["))])
def test_paths_exist_without_measurements(path: str) -> None:
    reach(json.loads(to_json(bare_analysis())), path)


def test_missing_measures_have_reasons() -> None:
    made = document(bare_analysis())
    assert made["nvtx"] == []
    assert made["iterations"] == {
        "range": None,
        "source": "none",
        "confidence": 0.0,
        "time_ns": None,
        "unprofiled_ns": None,
        "unprofiled_source": None,
        "count": 0,
        "skipped": 0,
        "kinds": [],
        "candidates": [],
        "wall_ns": {"median": None, "p5": None, "p95": None},
        "per_iteration": [],
        "not_measured": "no iterations",
    }
    assert made["notes"] == [
        {"id": "no_nvtx", "text": "no NVTX ranges", "affects": []},
        {"id": "no_iterations", "text": "no iterations", "affects": []},
    ]


def test_iterations_have_every_figure() -> None:
    (row,) = reach(json.loads(to_json(made_analysis())), "iterations.per_iteration[]")
    assert list(row) == [*A_ROW[:11], "idle", "blocked_ns", "kernel_count"]
    assert list(row["idle"]) == list(CAUSES)


def test_places_have_the_ids_of_cuda_and_the_system() -> None:
    analysis = made_analysis()
    with_ids = analysis.trace.streams.with_columns(stream_id=analysis.trace.streams["stream_id"] + 41)
    places = reach(json.loads(to_json(_with_streams(analysis.trace, with_ids))), "findings[].evidence[]")
    assert places[0] == {
        "text": "the worst place",
        "start_ns": 10,
        "end_ns": 20,
        "device": "GPU 0",
        "stream": 41,
        "thread": 0,
    }


def _with_streams(trace: Trace, streams: Any) -> Any:
    from dataclasses import replace

    return replace(made_analysis(), trace=replace(trace, streams=streams))


def test_bytes_are_reproducible_with_any_name() -> None:
    names = '"\\\n\x00\u2028 </script> 核'
    text = to_json(made_analysis(names))
    assert text == to_json(made_analysis(names))
    assert json.loads(text)["nvtx"][0]["name"] == f"range 0{names}"


def test_text_has_one_row_per_line() -> None:
    analysis = made_analysis()
    text = to_json(analysis)
    assert json.loads(text) == document(analysis)
    assert list(json.loads(text)) == list(document(analysis))
    rows = [line for line in text.splitlines() if line.startswith('  {"name": "range ')]
    assert len(rows) == len(analysis.nvtx) == 12


@pytest.mark.parametrize("name", ALL)
def test_real_captures_keep_the_contract(name: str) -> None:
    analysis = analyze(shared(name), top=3)
    made = json.loads(to_json(analysis))
    for path in CONTRACT:
        reach(made, path)
    assert floats(made) <= FRACTIONS
    for device in made["devices"]:
        assert sum(device["gaps"]["causes"].values()) == device["gaps"]["total_ns"] == device["idle_ns"]
        assert len(device["gaps"]["longest"]) <= 3
        assert device["busy_ns"] + device["idle_ns"] == device["window_ns"][1] - device["window_ns"][0]
        for stream in device["streams"]:
            assert sum(stream["causes"].values()) == stream["gap_ns"]


@dataclass(frozen=True)
class Inner:
    ratio: float
    names: tuple[str, ...]


@dataclass(frozen=True)
class Outer:
    lag: int
    inner: Inner
    causes: Mapping[str, int]


def test_dataclass_becomes_an_object() -> None:
    value = [Outer(3, Inner(0.5, ("a", "b")), {"lag": 1})]
    assert plain_values(value) == [{"lag": 3, "inner": {"ratio": 0.5, "names": ["a", "b"]}, "causes": {"lag": 1}}]
    shapes: Shapes = {
        Outer: {"lag_ns": "lag", "of": {"inner": "inner", "ratio": "inner.ratio"}, "kind": Constant("made")},
        Inner: {"percent": Value("ratio", lambda ratio, result: f"{ratio:.0%} of {result}"), **names("names")},
    }
    assert plain_values(value, shapes, "all") == [
        {"lag_ns": 3, "of": {"inner": {"percent": "50% of all", "names": ["a", "b"]}, "ratio": 0.5}, "kind": "made"}
    ]


def test_value_without_json_is_refused() -> None:
    with pytest.raises(AssertionError, match="cannot be written as JSON"):
        plain_values(object())
    with pytest.raises(ValueError, match="not JSON compliant"):
        indented_text(float("nan"))
