"""The invariants of docs/definitions.md hold on every sample and shared capture, and a broken document is noticed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ALL, SAMPLES, analyzed, sample, shared
from tests.fuzz.check_capture import violations
from tests.fuzz.invariants import broken
from traceview.report.analysis import to_json

NAMES = sorted(str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*/*.sqlite"))  # the others are in ALL


@pytest.mark.parametrize("name", NAMES)
def test_samples_keep_every_invariant(name: str) -> None:
    assert violations(sample(name), analyzed(sample(name))) == []


@pytest.mark.parametrize("name", ALL)
def test_captures_keep_every_invariant(name: str) -> None:
    assert violations(shared(name), analyzed(shared(name))) == []


def test_torch_profiler_keeps_every_invariant() -> None:
    assert [line for path in _torch_traces() for line in violations(path, analyzed(path))] == []


def _torch_traces() -> list[Path]:
    return sorted(path for path in (SAMPLES / "torch_profiler").iterdir() if path.name.endswith((".json", ".json.gz")))


def _costlier_wait(result: dict[str, Any]) -> None:
    result["host"]["implicit_sync"]["calls"][0]["cost_ns"] = result["host"]["implicit_sync"]["blocked_ns"] + 1


def _costlier_iteration(result: dict[str, Any]) -> None:
    result["findings"][0]["cost_per_iteration_ns"] = result["iterations"]["time_ns"] + 1


def _lost_twice(result: dict[str, Any]) -> None:
    result["findings"].append(copy.deepcopy(result["findings"][0]))


def _wrong_severity(result: dict[str, Any]) -> None:
    result["findings"][0]["severity"] = "low"


def _steady_outside(result: dict[str, Any]) -> None:
    result["devices"][0]["steady"]["window_ns"][0] = result["devices"][0]["window_ns"][0] - 1


def _more_idle(result: dict[str, Any]) -> None:
    result["devices"][0]["steady"]["causes"]["host"] += 1


def _unstated_cut(result: dict[str, Any]) -> None:
    result["report"]["trust"]["cut"] = 3


def _unstated_loss(result: dict[str, Any]) -> None:
    result["report"]["trust"]["lost_fraction"] = 0.5


def _unstated_failure(result: dict[str, Any]) -> None:
    result["report"]["trust"]["failed"] = "1 launch failed (cudaLaunchKernel: out of memory)"


def _unnamed_table(result: dict[str, Any]) -> None:
    result["report"]["trust"]["unread_tables"] = ["NVTX_EVENTS_V2"]


def _claimed_hole(result: dict[str, Any]) -> None:
    start, end = result["devices"][0]["steady"]["window_ns"]
    result["report"]["trust"]["holes"] = [{"start_ns": start, "end_ns": end - 1}]


def _reversed(result: dict[str, Any]) -> None:
    result["findings"].reverse()


@pytest.mark.parametrize(
    "damage",
    [
        *(_costlier_wait, _costlier_iteration, _lost_twice, _wrong_severity, _steady_outside, _more_idle, _reversed),
        *(_unstated_cut, _unstated_loss, _unstated_failure, _unnamed_table, _claimed_hole),
    ],
)
def test_violations_are_noticed(damage: Callable[[dict[str, Any]], None]) -> None:
    result = json.loads(to_json(analyzed(sample("serial.sqlite"))))
    assert list(broken(result)) == []
    damage(result)
    assert list(broken(result)) != []
