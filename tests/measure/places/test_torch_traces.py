"""The places of kernels in a real trace: torch.profiler's own links between kernels, ops, forward and backward."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import polars as pl
import pytest

from tests.captures import sample
from traceview.measure.nvtx import project_operations
from traceview.measure.places import OpTree, Places, locate_operations
from traceview.model.trace import Trace
from traceview.pipeline import open_trace

SERIAL = "torch_profiler/serial.json.gz"


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    with gzip.open(sample(SERIAL), "rt") as file:
        listed: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return listed


@pytest.fixture(scope="module")
def trace() -> Trace:
    return open_trace(sample(SERIAL))


@pytest.fixture(scope="module")
def places(trace: Trace) -> Places:
    return locate_operations(trace, project_operations(trace))


def test_ops_equal_those_of_external_ids(events: list[dict[str, Any]], trace: Trace, places: Places) -> None:
    """Each kernel carries the id of the op that launches it: torch.profiler's key_averages() rests on it."""
    names = {event["args"]["External id"]: event["name"] for event in events if event.get("cat") == "cpu_op"}
    expected: Counter[str | None] = Counter()
    for event in events:
        if event.get("cat") == "kernel":
            expected[names.get(event["args"]["External id"])] += round(event["dur"] * 1000)
    work = trace.operations.select("source", ns=pl.col("end") - pl.col("start"), place=pl.Series(places.code))
    kernels = work.filter(pl.col("source").cast(pl.String) == "kernel")
    ops = kernels.select("ns", op=places.table["inner_op"].gather(kernels["place"]))
    by_op = ops.group_by("op").agg(pl.sum("ns"))
    assert dict(by_op.rows()) == dict(expected)


def test_forward_ops_equal_those_of_flows(events: list[dict[str, Any]], trace: Trace) -> None:
    """torch.profiler draws an arrow from the start of a forward op to the start of its backward op."""
    arrows: dict[str, dict[int, dict[str, Any]]] = {"s": {}, "f": {}}
    for event in events:
        if event.get("cat") == "fwdbwd":
            arrows[event["ph"]][event["id"]] = event
    tree = OpTree.build(trace.scopes.filter(pl.col("kind") == "op"))
    start = tree.nesting.start.tolist()
    first = min(event["ts"] for event in events if event.get("cat") == "cpu_op")
    links = {start[place]: start[forward] for place, forward in enumerate(tree.forward.tolist()) if forward >= 0}

    def at(event: dict[str, Any]) -> int:
        return round((event["ts"] - first) * 1000) + min(start)

    near = {moment + shift: forward for moment, forward in links.items() for shift in (-1, 0, 1)}  # ts is a float here
    assert len(arrows["f"]) > 1000
    assert all(abs(near[at(end)] - at(arrows["s"][number])) <= 1 for number, end in arrows["f"].items())


def test_backward_kernels_belong_to_the_op_of_their_forward(places: Places) -> None:
    by_inner = {(row["inner_op"], row["direction"]): row["op"] for row in places.table.iter_rows(named=True)}
    assert by_inner["aten::native_layer_norm_backward", "backward"] == "aten::layer_norm"
    assert by_inner["aten::_fused_adamw_", "optimizer"] == "aten::_fused_adamw_"
    assert by_inner["aten::addmm", "forward"] == "aten::linear"
