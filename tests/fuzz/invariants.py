"""Invariants of all JSON documents, from docs/definitions.md."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.fuzz.cost_invariants import OUTSIDE, broken_costs
from tests.oracle.export import Export

MIN_STATED = 0.05  # share of the launches
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
# A change may lose time, and kernels beside copies may be the faster ones.
SIGNED = {"start_ns", "end_ns", "gpu_end_ns", "window_ns", "low_ns", "high_ns", "contention_ns"}
TIMES_COMPARED = ("before_ns", "after_ns", "mean_before_ns", "mean_after_ns")
OTHERS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
SOUND = "typeof(start) = 'integer' AND typeof(\"end\") = 'integer' AND \"end\" >= start"


def parsed(text: str) -> Any:
    """Parse JSON strictly: duplicate names, NaN and infinity are errors."""

    def refuse(name: str) -> object:
        raise ValueError(f"{name} is not JSON")

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice in an object")
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def broken(result: dict[str, Any]) -> Iterator[str]:
    """Yield each violated invariant of a document of `analyze`."""
    yield from signs(result, "")
    for number, device in enumerate(result["devices"]):
        for line in _device(device):
            yield f"devices[{number}]: {line}"
    for name, use in result["host"].items():
        for line in _calls(use) if use["calls"] is not None else ():
            yield f"host.{name}: {line}"
    yield from _ranges(result)
    yield from broken_costs(result)
    yield from _trust(result)


def _trust(result: dict[str, Any]) -> Iterator[str]:
    """Yield what the verdict says and the document does not: in the answer, the notes, and the findings of a GPU."""
    trust, text, ids = result["report"]["trust"], result["answer"]["text"], {note["id"] for note in result["notes"]}
    for key, note in (("cut", "cut_work"), ("doubled", "doubled_work"), ("unread_tables", "unread_table")):
        if bool(trust[key]) != (note in ids):
            yield f"trust.{key} is {trust[key]}, and there is {'a' if note in ids else 'no'} note {note}"
    if trust["lost_fraction"] >= MIN_STATED and "launches ha" not in text.partition(". ")[0] and not trust["failed"]:
        yield f"{trust['lost_fraction']} of the launches are lost, and the answer begins with {text[:60]!r}"
    if trust["failed"] and trust["failed"][1:] not in text.partition("; ")[0]:
        yield f"{trust['failed']}, and the answer begins with {text[:60]!r}"
    holes = [(hole["start_ns"], hole["end_ns"]) for hole in trust["holes"]]
    if any(end <= start for start, end in holes) or any(low[1] >= high[0] for low, high in pairwise(holes)):
        yield f"holes are empty or in no order: {holes}"
    for device in result["devices"]:
        whole = result["whole"] or not result["iterations"]["count"]
        first, last = (device if whole else device["steady"])["window_ns"]
        known = last - first - sum(max(min(end, last) - max(start, first), 0) for start, end in holes)
        mine = [item for item in result["findings"] if item["device"] == device["id"] and item["id"] not in OUTSIDE]
        claimed = sum(item["cost_ns"] for item in mine if item["claims"] != "compute")
        if claimed > known:
            yield f"findings claim {claimed} ns of {device['id']}, which has {known} ns outside holes"


def _ranges(result: dict[str, Any]) -> Iterator[str]:
    for row in result["nvtx"]:
        if not 0 <= row["gpu_busy_ns"] <= row["gpu_span_ns"]:
            yield f"nvtx: busy {row['gpu_busy_ns']} of a span of {row['gpu_span_ns']}"
    for row in result["iterations"]["per_iteration"]:
        if any(ns < 0 for ns in row["idle"].values()):
            yield "iterations: an idle time is negative"


def of_whatif(result: dict[str, Any]) -> Iterator[str]:
    """Yield each violated invariant of a document of `whatif`."""
    yield from signs(result, "")
    for item in (*result["predictions"], *result["together"]):
        if not 0 <= item["low_ns"] <= item["iteration_ns"] <= item["high_ns"]:
            yield f"{item['change']}: {item['iteration_ns']} is not within {item['low_ns']} to {item['high_ns']}"
    for item in result["spans"]:
        if item["end_ns"] < item["start_ns"]:
            yield "a span of the path ends before it begins"


def of_compare(result: dict[str, Any], same: bool) -> Iterator[str]:
    """Yield each violated invariant of a document of `compare`; `same`: a report is compared with itself."""
    for item in result["against"]:
        yield from _differences(item, same)
        low, high = item["ratio_low"], item["ratio_high"]
        if None not in (low, item["ratio"], high) and not low <= item["ratio"] <= high:
            yield "the ratio is outside its interval"
        if same and item["verdict"] not in ("noise", "unjudged"):
            yield f"a report differs from itself: {item['verdict']}"


def _differences(value: object, same: bool, name: str = "") -> Iterator[str]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _differences(item, same, str(key))
    if isinstance(value, dict) and {"before_ns", "after_ns", "difference_ns"} <= value.keys():
        # "twice" takes off what two exposed kinds at once have in both of them (docs/compare.md "Parts").
        sign = -1 if name == "twice" else 1
        times = (value[key] for key in TIMES_COMPARED if value.get(key) is not None)
        if any(sign * time < 0 for time in times):
            yield f"a time of the wrong sign: {name} {value}"
        if same and value["difference_ns"]:
            yield f"a report differs from itself: {name} {value}"


def signs(value: object, path: str, signed: Collection[str] = SIGNED) -> Iterator[str]:
    """Yield counts, sizes and lengths that are negative or not integers; -1 in a list means none."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from signs(inner, f"{path}.{key}", signed)
            if key in signed or path.endswith(".clock") or inner is None or isinstance(inner, (dict, list, str)):
                continue
            if key.endswith(("_ns", "_bytes", "count")) and (not isinstance(inner, int) or inner < 0):
                yield f"{path}.{key} is {inner!r}"
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from signs(inner, f"{path}[{number}]", signed)


def _device(device: dict[str, Any]) -> Iterator[str]:
    start, end = device["window_ns"]
    busy, gaps = device["busy_ns"], device["gaps"]
    if busy + device["idle_ns"] != end - start:
        yield "busy and idle do not make the window"
    if gaps["total_ns"] != device["idle_ns"] or sum(gaps["causes"].values()) != gaps["total_ns"]:
        yield "the causes of the gaps do not add up to the idle time"
    if min(gaps["causes"].values()) < 0:
        yield "a cause is negative"
    if max(device["compute_ns"], device["communication_ns"]) > busy:
        yield "a class is busier than the device"
    for gap in gaps["longest"]:
        if gap["end_ns"] - gap["start_ns"] != gap["length_ns"] or sum(gap["causes"].values()) != gap["length_ns"]:
            yield "the causes of a gap do not add up to its length"
        if not start <= gap["start_ns"] < gap["end_ns"] <= end:
            yield "a gap lies outside the window"
    for copies in (*device["copies"], device["communication"]):
        if copies["overlapped_ns"] + copies["exposed_ns"] != copies["busy_ns"] or copies["busy_ns"] > busy:
            yield "overlapped and exposed do not make busy"
    yield from _streams(device, end - start)


def _streams(device: dict[str, Any], window: int) -> Iterator[str]:
    streams, busy = device["streams"], device["busy_ns"]
    if sum(item["kernel_count"] for item in streams) != device["kernel_count"]:
        yield "the kernels of the streams are not those of the device"
    if sum(item["copy_count"] for item in streams) != sum(item["count"] for item in device["copies"]):
        yield "the copies of the streams are not those of the device"
    if streams and not max(item["busy_ns"] for item in streams) <= busy <= sum(item["busy_ns"] for item in streams):
        yield "the device's busy time is not the union of its streams'"
    for item in streams:
        if item["busy_ns"] + item["gap_ns"] > window:
            yield "a stream's time is more than the window"


def _calls(use: dict[str, Any]) -> Iterator[str]:
    if use["count"] is None:  # no CUDA calls were recorded
        return
    if use["waited_ns"] + use["starved_ns"] != use["blocked_ns"]:
        yield "waited and starved do not make blocked"
    for name in ("count", "blocked_ns"):
        if sum(call[name] for call in use["calls"]) != use[name]:
            yield f"the calls do not add up to {name}"


def miscounted(result: dict[str, Any], export: Path) -> Iterator[str]:
    """Yield tables whose number of rows left out is wrong, and wrong kernel counts."""
    known = Export(export)
    between = f'start >= {known.low} AND "end" <= {known.high}'
    for table in known.tables & {KERNEL, *OTHERS}:
        query = f"SELECT count(*), coalesce(sum({SOUND} AND {between}), 0) FROM {table}"
        rows, sound = known.connection.execute(query).fetchone()
        note_matches = [re.match(rf"([\d,]+) rows? of {table} left out", note["text"]) for note in result["notes"]]
        if (left_out := sum(int(item[1].replace(",", "")) for item in note_matches if item)) != rows - sound:
            yield f"{rows - sound} rows of {table} are bad, {left_out} said to be left out"
        counted = sum(device["kernel_count"] for device in result["devices"])
        kernels = sum(one.table == "kernel" for one in known.operations)  # each once
        if table == KERNEL and counted != kernels:
            yield f"{counted} kernels counted, {kernels} of {rows} rows are sound"
    known.connection.close()
