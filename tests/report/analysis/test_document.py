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

CONTRACT = """
schema_version whole
report: file nsys_version schema_version
devices[]: id process_ids window_ns busy_ns compute_ns communication_ns idle_ns
devices[].copies[]: kind memory count bytes busy_ns overlapped_ns exposed_ns
devices[].communication: count busy_ns overlapped_ns exposed_ns
devices[].streams[]: id process_id kernel_count copy_count busy_ns gap_count gap_ns
devices[].gaps: count total_ns longest[]
devices[].gaps.causes: profiler queued launch sync blocking_copy memory api host unknown
devices[].steady: window_ns kernel_count busy_ns compute_ns communication_ns idle_ns causes.host
devices[].steady: exposed_h2d_ns exposed_d2h_ns exposed_communication_ns
host.sync: count blocked_ns waited_ns starved_ns
host.sync.calls[]: api count blocked_ns
host.implicit_sync: count blocked_ns waited_ns starved_ns calls[].api
nvtx[]: name domain count host_ns gpu_busy_ns gpu_span_ns kernel_count
iterations: range count skipped per_iteration[] wall_ns.median wall_ns.p5 wall_ns.p95
findings[]: id severity title evidence cost_ns advice
unmatched: kernels copies
notes[]: id text affects
"""
PATHS = [
    ".".join([*line.split(": ")[:-1], name]) for line in CONTRACT.split("\n") for name in line.split(": ")[-1].split()
]
FRACTIONS = {
    *(
        f".devices[].{part}kernels[].{name}"
        for part in ("", "steady.")
        for name in ("share", "blocks_per_sm", "waves", "occupancy")
    ),
    *(f".devices[].{part}{rows}[].share" for part in ("", "steady.") for rows in ("kernel_places", "modules")),
    *(f".devices[].{part}matrix_precisions[].{name}" for part in ("", "steady.") for name in ("share", "of_peak")),
    *(f".devices[].{part}collectives[].bus_factor" for part in ("", "steady.")),
    ".speed_of_light[].mfu",
    ".speed_of_light[].known_fraction",
    ".findings[].cost_fraction",
    ".findings[].others[].cost_fraction",
    ".findings[].unprofiled_cost_fraction",
    ".findings[].others[].unprofiled_cost_fraction",
    ".iterations.confidence",
    ".report.trust.lost_fraction",
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


def test_every_path_of_the_contract_exists() -> None:
    made, bare = (json.loads(to_json(analysis)) for analysis in (made_analysis(), bare_analysis()))
    assert [path for path in PATHS if reach(made, path) == []] == []
    for path in PATHS:
        if not path.startswith(("nvtx[", "findings[")):
            reach(bare, path)


def test_missing_measures_have_reasons() -> None:
    made = document(bare_analysis())
    assert made["nvtx"] == []
    assert made["iterations"] == {
        "range": None,
        "source": "none",
        "confidence": 0.0,
        "time_ns": None,
        "drift": None,
        "unprofiled_ns": None,
        "unprofiled_source": None,
        "count": 0,
        "skipped": 0,
        "lost": 0,
        "apart": 0,
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
    assert list(row) == [*A_ROW[:11], "idle", "blocked_ns", "kernel_count", "gpu_end_ns"]
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
    assert len(rows) == 2 * len(analysis.nvtx) == 24  # and the phases, which equal the ranges here


@pytest.mark.parametrize("name", ALL)
def test_real_captures_keep_the_contract(name: str) -> None:
    analysis = analyze(shared(name), top=3)
    made = json.loads(to_json(analysis))
    for path in PATHS:
        reach(made, path)
    assert floats(made) <= FRACTIONS
    assert all(len(device["gaps"]["longest"]) <= 3 for device in made["devices"])


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
