"""The Trace Event Format holds all events of the capture with exact times."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ALL, sample, shared
from tests.exporters.hostile import hostile_export
from traceview.exporters import ExportContents, chrome, collect
from traceview.pipeline import open_trace

Event = dict[str, Any]
CATEGORIES = {"kernel": "kernel", "graph": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}


def events(contents: ExportContents) -> list[Event]:
    document = json.loads(b"".join(chrome.pieces(contents)), parse_float=Decimal)
    listed: list[Event] = document["traceEvents"]
    return listed


def profiler_name(source: str, kind: str | None, memory: str | None, name: str) -> str:
    """Return the name that PyTorch Profiler gives an operation."""
    host = str(memory).capitalize()
    copies = {
        "h2d": f"Memcpy HtoD ({host} -> Device)",
        "d2h": f"Memcpy DtoH (Device -> {host})",
        "d2d": "Memcpy DtoD (Device -> Device)",
        "h2h": f"Memcpy HtoH ({host} -> {host})",
        "p2p": "Memcpy PtoP (Device -> Device)",
    }
    return copies.get(kind or "", "Memset (Device)" if source == "memset" else name)


def ns(microseconds: Decimal) -> int:
    exact = microseconds * 1000
    assert exact == int(exact)
    return int(exact)


def times(listed: list[Event], category: str) -> Counter[tuple[str, int, int]]:
    mine = [event for event in listed if event["ph"] == "X" and event["cat"] == category]
    return Counter((event["name"], ns(event["ts"]), ns(event["ts"] + event["dur"])) for event in mine)


@pytest.mark.parametrize("name", ["h200_dual.sqlite", *ALL[4:]])
def test_all_events_with_exact_times(name: str) -> None:
    trace = open_trace(shared(name))
    listed = events(collect(trace))
    for category in set(CATEGORIES.values()):
        sources = [source for source, contents in CATEGORIES.items() if contents == category]
        frame = trace.operations.filter(trace.operations["source"].is_in(sources))
        columns = frame.select("source", "kind", "memory", "name", "start", "end")
        assert times(listed, category) == Counter((profiler_name(*row[:4]), *row[4:]) for row in columns.iter_rows())
    assert times(listed, "cuda_runtime") == Counter(trace.api.select("name", "start", "end").iter_rows())
    assert times(listed, "user_annotation") == Counter(trace.ranges.select("name", "start", "end").iter_rows())


def test_rows_and_arguments_match_pytorch_profiler() -> None:
    trace = open_trace(sample("ddp2.sqlite"))
    listed = events(collect(trace))
    kernels = [event for event in listed if event.get("cat") == "kernel"]
    streams = {(event["pid"], event["tid"]) for event in kernels}
    assert {(event["args"]["device"], event["args"]["stream"]) for event in kernels} == streams
    names = {event["pid"]: event["args"]["name"] for event in listed if event["name"] == "process_name"}
    assert [names[device] for device in range(2)] == ["GPU 0 NVIDIA H200", "GPU 1 NVIDIA H200"]
    begins = {event["id"]: event for event in listed if event["ph"] == "s"}
    ends = {event["id"]: event for event in listed if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == trace.operations["launch"].count()
    calls = {(event["pid"], event["tid"], event["ts"]) for event in listed if event.get("cat") == "cuda_runtime"}
    assert {(event["pid"], event["tid"], event["ts"]) for event in begins.values()} <= calls


def test_hostile_names(tmp_path: Path) -> None:
    trace = open_trace(hostile_export(tmp_path / "hostile.sqlite"))
    listed = events(collect(trace))
    assert times(listed, "kernel") == Counter(trace.operations.select("name", "start", "end").iter_rows())
    assert times(listed, "user_annotation") == Counter(trace.ranges.select("name", "start", "end").iter_rows())


def test_process_number_equal_to_a_gpu_number(tmp_path: Path) -> None:
    from tests.build_export import Call, Kernel, build_export

    path = build_export(tmp_path / "one.sqlite", kernels=[Kernel(process=0)], api=[Call(process=0, thread=0)])
    listed = events(collect(open_trace(path)))
    names = [(event["pid"], event["args"]["name"]) for event in listed if event["name"] == "process_name"]
    assert len({process for process, _ in names}) == 2
    assert (0, "process 0") in names
