"""The Trace Event Format, read with a plain JSON parser, adds up to the capture exactly."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ALL, sample, shared
from tests.export.hostile import hostile_export
from traceview.export import Contents, chrome, collect
from traceview.pipeline import open_trace

Event = dict[str, Any]
CATEGORIES = {"kernel": "kernel", "graph": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}


def events(of: Contents) -> list[Event]:
    document = json.loads(b"".join(chrome.pieces(of)), parse_float=Decimal)
    found: list[Event] = document["traceEvents"]
    return found


def called(source: str, kind: str | None, memory: str | None, name: str) -> str:
    """What PyTorch Profiler calls it."""
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
    whole = microseconds * 1000
    assert whole == int(whole)
    return int(whole)


def times(found: list[Event], category: str) -> Counter[tuple[str, int, int]]:
    mine = [one for one in found if one["ph"] == "X" and one["cat"] == category]
    return Counter((one["name"], ns(one["ts"]), ns(one["ts"] + one["dur"])) for one in mine)


@pytest.mark.parametrize("name", ["h200_dual.sqlite", *ALL[4:]])
def test_every_event_is_there_with_its_exact_times(name: str) -> None:
    trace = open_trace(shared(name))
    found = events(collect(trace))
    for category in set(CATEGORIES.values()):
        sources = [source for source, of in CATEGORIES.items() if of == category]
        frame = trace.operations.filter(trace.operations["source"].is_in(sources))
        columns = frame.select("source", "kind", "memory", "name", "start", "end")
        assert times(found, category) == Counter((called(*row[:4]), *row[4:]) for row in columns.iter_rows())
    assert times(found, "cuda_runtime") == Counter(trace.api.select("name", "start", "end").iter_rows())
    assert times(found, "user_annotation") == Counter(trace.ranges.select("name", "start", "end").iter_rows())


def test_rows_and_arguments_are_those_that_pytorch_profiler_writes() -> None:
    trace = open_trace(sample("ddp2.sqlite"))
    found = events(collect(trace))
    kernels = [one for one in found if one.get("cat") == "kernel"]
    streams = {(one["pid"], one["tid"]) for one in kernels}
    assert {(one["args"]["device"], one["args"]["stream"]) for one in kernels} == streams
    names = {one["pid"]: one["args"]["name"] for one in found if one["name"] == "process_name"}
    assert [names[device] for device in range(2)] == ["GPU 0 NVIDIA H200", "GPU 1 NVIDIA H200"]
    begins = {one["id"]: one for one in found if one["ph"] == "s"}
    ends = {one["id"]: one for one in found if one["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == trace.operations["launch"].count()
    calls = {(one["pid"], one["tid"], one["ts"]) for one in found if one.get("cat") == "cuda_runtime"}
    assert {(one["pid"], one["tid"], one["ts"]) for one in begins.values()} <= calls


def test_hostile_names_are_what_a_parser_reads(tmp_path: Path) -> None:
    trace = open_trace(hostile_export(tmp_path / "hostile.sqlite"))
    found = events(collect(trace))
    assert times(found, "kernel") == Counter(trace.operations.select("name", "start", "end").iter_rows())
    assert times(found, "user_annotation") == Counter(trace.ranges.select("name", "start", "end").iter_rows())


def test_a_process_whose_number_is_a_gpus_keeps_it(tmp_path: Path) -> None:
    from tests.build_export import Call, Kernel, build_export

    path = build_export(tmp_path / "one.sqlite", kernels=[Kernel(process=0)], api=[Call(process=0, thread=0)])
    found = events(collect(open_trace(path)))
    names = [(one["pid"], one["args"]["name"]) for one in found if one["name"] == "process_name"]
    assert len({process for process, _ in names}) == 2
    assert (0, "process 0") in names
