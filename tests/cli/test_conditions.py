"""--fail-if: conditions on the JSON documents of analyze, compare and fleet."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, change, sample
from tests.ranks.reports import merged, ranks_of
from tests.report.made_analysis import bare_analysis
from traceview.cli.conditions import OPERATORS, SHORT_NAMES, check_results, conditions_of
from traceview.comparison import compare
from traceview.errors import RequestError
from traceview.model.units import exact_duration
from traceview.pipeline import analyze
from traceview.report.analysis import document as of_analysis
from traceview.report.comparison import document as of_comparison
from traceview.report.fleet import document as of_fleet

Json = dict[str, Any]
GPU_TABLES = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET")]


@cache
def real(command: str) -> Json:
    """Return a document of real captures: two GPUs, two runs, four ranks."""
    if command == "analyze":
        return of_analysis(analyzed(sample("ddp2.sqlite"), flops_per_iteration=10**12))
    if command == "compare":
        return of_comparison(compare(analyzed(sample("dual.sqlite")), analyzed(sample("serial.sqlite"))))
    return of_fleet(merged(ranks_of("slowgpu")))


def checks(command: str, text: str, document: Json | None = None) -> tuple[bool, str]:
    """Return whether a condition passed, and the reason."""
    (check,) = check_results(conditions_of(command, [text]), lambda: document or real(command))
    assert check.condition == f"--fail-if {text.strip()}" and check.value in check.reason
    return check.passed, check.reason


def refused(command: str, text: str, reason: str, document: Json | None = None) -> None:
    with pytest.raises(RequestError, match=f"--fail-if .*{reason}"):
        checks(command, text, document)


def test_short_names_of_devices_are_shares_of_the_steady_part() -> None:
    devices = real("analyze")["devices"]
    for name in ("busy", "idle", "compute", "communication", "exposed_h2d", "exposed_communication"):
        steady = [device["steady"] for device in devices]
        shares = [100 * part[f"{name}_ns"] / (part["window_ns"][1] - part["window_ns"][0]) for part in steady]
        most = shares.index(max(shares))
        passed, reason = checks("analyze", f"{name} > 0%")
        assert not passed and reason.startswith(f"{name} is {max(shares):.3f}% (")
        assert f" on {devices[most]['id']}" in reason and reason.endswith("and on 1 more") == (min(shares) > 0)
        assert checks("analyze", f"{name} > {max(shares) + 0.001:.3f}%")[0]
        assert checks("analyze", f"{name} == {steady[most][f'{name}_ns']}ns")[0] is False


def test_paths_lead_to_each_element_of_a_list() -> None:
    document = {
        "devices": [
            {"id": "GPU 0", "steady": {"idle_ns": 4_000_000}, "copies": [{"kind": "h2d", "bytes": 3 * 10**9}]},
            {"id": "GPU 1", "steady": {"idle_ns": 6_000_000}, "copies": [{"kind": "d2h", "bytes": 1000}, {"bytes": 5}]},
        ],
        "lengths_ns": [5, 7],
        "rows": [[1, 2], [3, 40]],
        "parts": {"idle.launch": {"difference_ns": 3_000_000}},
        "notes": [],
    }
    for text, passed, reason in (
        ("devices[].steady.idle_ns > 5ms", False, "is 6 ms on GPU 1"),
        ("devices.steady.idle_ns > 3ms", False, "is 6 ms on GPU 1 and on 1 more"),
        ("devices.steady.idle_ns < 5000us", False, "is 4 ms on GPU 0"),
        ("devices[0].steady.idle_ns > 0.005s", True, "is 4 ms on GPU 0"),
        ("devices[1].steady.idle_ns != 6ms", True, "is 6 ms on GPU 1"),
        ("devices.copies.bytes >= 3GB", False, "is 3,000,000,000 on GPU 0, h2d"),
        ("devices[1].copies[0].bytes <= 1KB", False, "is 1,000 on GPU 1, d2h"),
        ("devices > 2", True, "devices is 2"),
        ("devices[].copies == 2", False, "is 2 on GPU 1"),
        ("notes > 0", True, "notes is 0"),
        ("lengths_ns > 6ns", False, "is 7 ns"),
        ("lengths_ns[0] > 6", True, "is 5 ns"),
        ("rows[][1] > 30", False, "is 40"),
        ("parts.idle.launch.difference_ns > 2ms", False, "changed by +3 ms"),
    ):
        found = checks("analyze", text, document)
        assert found[0] is passed and found[1].endswith(reason), (text, found)


def test_conditions_on_a_comparison_are_changes() -> None:
    against = real("compare")["against"][0]
    before, difference = against["time"]["before_ns"], against["time"]["difference_ns"]
    assert checks("compare", "iteration > 3%") == (
        False,
        f"iteration changed by +{100 * difference / before:.3f}% (+{exact_duration(difference)} of "
        f"{exact_duration(before)}) on serial.sqlite",
    )
    assert checks("compare", f"iteration > {difference}")[0] and not checks("compare", "iteration >= 0")[0]
    assert checks("compare", "against.host.sync.count.difference > 99")[0]
    assert not checks("compare", "against[0].ratio > 1.03")[0] and not checks("compare", "iteration > -10%")[0]


def test_short_names_of_a_comparison_are_mean_parts_of_the_mean_time(tmp_path: Path) -> None:
    """They are known of documents, too."""
    path = tmp_path / "dual.json"
    path.write_text(analyzed(sample("dual.sqlite")).to_json(), encoding="utf-8")
    documents = compare(
        path,
        analyzed(sample("serial.sqlite")),
    )
    for document in (real("compare"), of_comparison(documents)):
        against = document["against"][0]
        parts = {name: part["difference_ns"] for name, part in against["mean_parts"].items()}
        idle = sum(ns for name, ns in parts.items() if name.startswith("idle."))
        before = against["time"]["before_ns"]
        for name, ns in (("idle", idle), *((name, parts[name]) for name in ("compute", "exposed_h2d", "exposed_d2h"))):
            passed, reason = checks("compare", f"{name} >= -999999%", document)
            change = f"{exact_duration(ns)} of {exact_duration(before)})"
            assert not passed and reason.startswith(f"{name} changed by ") and change in reason, reason


def test_conditions_on_a_fleet_name_the_worst_rank() -> None:
    rank = max(real("fleet")["ranks"], key=lambda rank: rank["lag_ns"])
    share = 100 * rank["lag_ns"] / rank["typical_own_ns"]
    passed, reason = checks("fleet", "straggler > 5%")
    assert not passed and reason.startswith(f"straggler is {share:.3f}% (") and reason.endswith(" on slowgpu_rank2")
    assert not checks("fleet", "ranks < 8")[0] and checks("fleet", "skipped > 0")[0]
    assert not checks("fleet", "stragglers > 0")[0]


@pytest.mark.parametrize("path", ["host.sync.count", "host.sync.calls", "host.implicit_sync.calls[].cost_ns"])
def test_calls_that_were_not_recorded_are_not_zero(tmp_path: Path, path: str) -> None:
    report = Path(shutil.copyfile(sample("dual.sqlite"), tmp_path / "dual.sqlite"))
    change(report, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    document = of_analysis(analyze(report))
    assert document["host"]["sync"]["calls"] == []
    refused("analyze", f"{path} > 0", "was not measured: The capture has no CUDA API calls", document)


@pytest.mark.parametrize("command", SHORT_NAMES)
def test_every_short_name_has_a_figure(command: str) -> None:
    for name, quantity in SHORT_NAMES[command].items():
        unit = "%" if quantity.total or not quantity.unit else "ms"
        assert not checks(command, f"{name} > -999999{unit}")[0], name


@pytest.mark.parametrize(
    ("command", "text", "near"),
    [
        ("analyze", "iteration.wall.p95 > 30ms", "iterations.wall_ns.p95"),
        ("analyze", "sync.blocked > 9%", "host.sync.blocked_ns"),
        ("compare", "iterations > 3%", "iteration"),
        ("fleet", "clock.uncertainty > 5us", "clocks[].uncertainty_ns"),
    ],
)
def test_wrong_path_names_the_nearest(command: str, text: str, near: str) -> None:
    refused(command, text, f"the nearest is {re.escape(near)}(?![.\\w])")
    checks(command, f"{near} > 0")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not PATH OP VALUE"),
        ("idle", "is not PATH OP VALUE, for example 'idle > 20%'"),
        ("idle > ", "is not PATH OP VALUE"),
        ("idle > 5 apples", "is not PATH OP VALUE"),
        ("idle > 5% and busy > 5%", "is not PATH OP VALUE"),
        ("__import__('os') > 1", "is not PATH OP VALUE"),
        ("idle > 5KB", "compare idle with a number with ns, us, ms or s"),
        ("iterations.time_ns > 5%", "compare iterations.time_ns with a number with ns, us, ms or s"),
        ("devices.copies.bytes > 5ms", "with a number with B, KB, MB or GB"),
        ("findings > 5%", "compare findings with a number without a unit"),
        ("devices.kernels.share > 5ms", "with a number with %"),
        ("idel > 5%", "the JSON of `analyze` has no figure idel; the nearest is idle$"),
        ("exposed_hd2 > 5%", "the nearest is exposed_h2d$"),
        ("iterations.walls_ns.p95 > 5ms", r"the nearest is iterations\.wall_ns\.p95$"),
        ("devices[7].steady.idle_ns > 5ms", r"the nearest is devices\[\]\.steady\.idle_ns$"),
        ("report.file == 1", r"has no figure report\.file; the nearest is "),
        ("whole == 1", "has no figure whole; the nearest is "),
    ],
)
def test_invalid_conditions(text: str, reason: str) -> None:
    refused("analyze", text, reason)


@given(st.text(max_size=60) | st.from_regex(r"[a-z]+(\[\d?\])?\.[a-z_]+ [<>=!]=? -?\d\.?\d?(ms|%|GB)?"))
def test_any_text_is_a_check_or_refused(text: str) -> None:
    document = {"a": [{"b": 1}, {"b": 0.5}], "notes": []}
    try:
        (check,) = check_results(conditions_of("analyze", [text]), lambda: document)
    except RequestError as error:
        assert "--fail-if" in str(error)
    else:
        assert any(operator in check.condition for operator in OPERATORS)


def test_missing_figures_pass_no_check(tmp_path: Path) -> None:
    """Neither a bound that any value passes, nor one that none passes."""
    path = shutil.copyfile(sample("dual.sqlite"), tmp_path / "damaged.sqlite")
    change(path, *(f"DROP TABLE {table}" for table in GPU_TABLES))
    without_gpu = of_analysis(analyze(path, iteration="iteration"))
    alone = of_fleet(merged([sample("dual.sqlite")]))
    for operator in ("<", ">="):
        for name in SHORT_NAMES["analyze"].keys() - {"iteration", "mfu"}:
            refused("analyze", f"{name} {operator} 0", "was not measured: The capture has no GPU work", without_gpu)
        refused("analyze", f"findings {operator} 0", "was not measured", without_gpu)
        refused("analyze", f"mfu {operator} 0%", "has no figure", without_gpu)
        refused("analyze", f"iteration {operator} 0", "was not measured: no iterations", of_analysis(bare_analysis()))
        without_flops = of_analysis(analyzed(sample("dual.sqlite")))
        refused("analyze", f"mfu {operator} 0%", "was not measured: .*--flops-per-iteration", without_flops)
        for name in ("straggler", "wait"):
            refused("fleet", f"{name} {operator} 0", "has no figure ranks", alone)


def test_no_finding_costs_nothing() -> None:
    document = real("analyze") | {"findings": []}
    assert checks("analyze", "finding > 0%", document) == (True, "finding is 0.000%")
    refused("analyze", "findings.cost_fraction > 0%", "has no figure findings.cost_fraction; the nearest is ", document)


def test_document_and_its_text_have_equal_results(tmp_path: Path) -> None:
    """A condition sees the same figures before and after the document becomes text."""
    for command in SHORT_NAMES:
        text = json.loads(json.dumps(real(command), default=lambda array: array.tolist()))
        for name in SHORT_NAMES[command]:
            assert checks(command, f"{name} > 0", text) == checks(command, f"{name} > 0"), name
    for path in ("heat.wall_ns", "heat.wall_ns[][]"):
        assert checks("fleet", f"{path} > 0", text) == checks("fleet", f"{path} > 0")
