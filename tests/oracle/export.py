"""The export as plain records, read with sqlite3 only."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import quote

KINDS = {1: "h2d", 3: "h2d", 2: "d2h", 4: "d2h", 5: "d2d", 6: "d2d", 7: "d2d", 8: "d2d", 9: "h2h", 10: "p2p"}
KINDS |= {11: "um_h2d", 12: "um_d2h", 13: "um_d2d"}
MEMORIES = {0: "pageable", 1: "pinned", 4: "managed", 6: "managed", 2: "device", 3: "device", 5: "device"}
REDUCE = ("all_reduce", "allreduce")
COMMUNICATION = (
    *("nccl", "rccl", "nvshmem", "mscclpp", "cross_device_reduce", "multimem_", "allreduce_fusion_kernel"),
    *("allreduce_prototype", "hybridcubemeshallreduce", "moe_all_to_all", "moealltoall", "all_to_all", "alltoall"),
    *(f"{count}{shot}{reduce}" for count in ("one", "two") for shot in ("_shot_", "shot") for reduce in REDUCE),
)


@dataclass
class Operation:
    start: int
    end: int
    table: str
    row: int
    cls: str
    kind: str | None
    memory: str | None
    size: int
    process: int
    device: int
    context: int
    stream: int
    correlation: int
    name: str = ""
    launch: Call | None = None


@dataclass
class Call:
    start: int
    end: int
    name: str
    thread: int
    process: int
    correlation: int
    role: str = "api"
    implicit: bool = False


@dataclass
class Range:
    start: int
    end: int
    name: str
    domain: str
    thread: int
    process: int


def process_of(identifier: int | None) -> int:
    return ((identifier or 0) >> 24) & 0xFFFFFF


def size_of(value: object) -> int:
    """Return a copy's bytes, 0 for impossible values."""
    return value if isinstance(value, int) and 0 <= value <= 2**50 else 0


def correlation_of(value: object) -> int:
    """Return a correlation id, 0 for values that exceed the 32 bits of CUPTI."""
    return value if isinstance(value, int) and 0 <= value < 2**32 else 0


def without_op_numbers(text: str) -> tuple[str, bool]:
    """Return "aten::mm" for "aten::mm, seq = 1, op_id = 2, sizes = []", and whether it is an op of PyTorch."""
    marks = [mark for mark in (", seq = ", ", op_id = ") if text.partition(mark)[2][:1].isdigit()]
    name = text.partition(marks[0])[0] if marks else text
    is_op = "::" in name or name.rstrip("0123456789").endswith("Backward") or ", seq = " in marks
    return name, bool(marks) and is_op


class Export:
    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(f"file:{quote(bytes(path))}?mode=ro&immutable=1", uri=True)
        self.connection.row_factory = sqlite3.Row
        self.tables = {row[0] for row in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        # The first of several rows with one id counts.
        self.strings = {row["id"]: row["value"] for row in reversed(list(self.rows("StringIds")))}
        self.low, self.high = self._around()
        self.operations = self._operations()
        self.calls = self._calls()
        self._link()
        self.ranges = self._ranges()
        self.overhead = [(row["start"], row["end"]) for row in self.timed("PROFILER_OVERHEAD")]
        self.devices = self._devices()

    def rows(self, table: str) -> list[dict[str, object]]:
        if table not in self.tables:
            return []
        return [dict(row) for row in self.connection.execute(f"SELECT * FROM {table}")]

    def timed(self, table: str) -> list[dict[str, object]]:
        return [
            row
            for row in self.rows(table)
            if self.inside(row["start"]) and self.inside(row["end"]) and row["end"] >= row["start"]
        ]

    def inside(self, time: object) -> bool:
        return isinstance(time, int) and self.low <= time <= self.high

    def _around(self) -> tuple[int, int]:
        """Return the valid times: within thirteen days of the median, and in 62 bits."""
        self.low, self.high = -(2**62 - 1), 2**62 - 1
        tables = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET", "RUNTIME")]
        starts = [row["start"] for table in (*tables, "PROFILER_OVERHEAD") for row in self.timed(table)]
        starts += [row["start"] for row in self._sound_ranges()]
        middle = int(median(starts)) if starts else 0
        return max(self.low, middle - 2**50), min(self.high, middle + 2**50)

    def _sound_ranges(self) -> list[dict[str, object]]:
        return [
            row
            for row in self.rows("NVTX_EVENTS")
            if row["eventType"] in (59, 60) and self.inside(row["start"])
            and (row["end"] is None or (self.inside(row["end"]) and row["end"] >= row["start"]))
        ]  # fmt: skip

    def _operations(self) -> list[Operation]:
        found = []
        for order, (table, suffix) in enumerate(
            [("kernel", "KERNEL"), ("graph", "GRAPH_TRACE"), ("memcpy", "MEMCPY"), ("memset", "MEMSET")]
        ):
            for number, row in enumerate(self.timed(f"CUPTI_ACTIVITY_KIND_{suffix}")):
                cls, kind, memory = self._classify(table, row)
                found.append(
                    Operation(
                        row["start"], row["end"], table, order * 10**9 + number, cls, kind, memory,
                        size_of(row.get("bytes")), process_of(row["globalPid"]), row["deviceId"] or 0,
                        row["contextId"] or 0, row["streamId"] or 0, correlation_of(row["correlationId"]),
                        self._name(table, row),
                    )
                )  # fmt: skip
        launched = {(one.process, one.correlation) for one in found if one.table == "kernel" and one.correlation}
        found = [one for one in found if one.table != "graph" or (one.process, one.correlation) not in launched]
        return mended(sorted(found, key=lambda one: (one.start, one.end, one.row)))

    def _name(self, table: str, row: dict[str, object]) -> str:
        """Return what tells work from other work of its table: a kernel's name, a graph's id, a copy's kind."""
        if table == "kernel":
            return self.strings.get(row["shortName"]) or "(unnamed)"
        return f"{table} {row.get('graphId')}" if table == "graph" else f"{table} {KINDS.get(row.get('copyKind'))}"

    def _classify(self, table: str, row: dict[str, object]) -> tuple[str, str | None, str | None]:
        if table == "kernel":
            name = self.strings.get(row["shortName"]) or ""
            return ("communication" if name.lower().startswith(COMMUNICATION) else "compute"), None, None
        if table == "graph":
            return "compute", None, None
        if table == "memset":
            return "memset", None, None
        kind = KINDS.get(row["copyKind"], "other")
        memory = "unknown"
        if kind in ("h2d", "h2h"):
            memory = MEMORIES.get(row.get("srcKind"), "unknown")
        elif kind == "d2h":
            memory = MEMORIES.get(row.get("dstKind"), "unknown")
        elif kind in ("d2d", "p2p"):
            memory = "device"
        elif kind.startswith("um_"):
            memory = "managed"
        return "copy", kind, memory

    def _calls(self) -> list[Call]:
        found = []
        for row in self.timed("CUPTI_ACTIVITY_KIND_RUNTIME"):
            name = re.sub(r"(_v\d+|_ptsz|_ptds)+$", "", self.strings.get(row["nameId"]) or "(unnamed)")
            thread = row["globalTid"] or 0
            correlation = correlation_of(row["correlationId"])
            call = Call(row["start"], row["end"], name, thread, process_of(thread), correlation)
            call.role, call.implicit = role_of(name)
            found.append(call)
        return found

    def _link(self) -> None:
        by_key: dict[tuple[int, int], Call] = {}
        # The first call in order of time wins where a correlation id repeats within a process.
        for call in sorted(self.calls, key=lambda call: (call.start, call.end)):
            by_key.setdefault((call.process, call.correlation), call)
        for one in self.operations:
            if one.correlation:
                one.launch = by_key.get((one.process, one.correlation))
            pageable = one.memory == "pageable" and one.kind in ("h2d", "d2h", "h2h")
            if pageable and one.launch is not None and is_async_copy(one.launch.name):
                one.launch.role, one.launch.implicit = "blocking_copy", True

    def _ranges(self) -> list[Range]:
        rows = self.rows("NVTX_EVENTS")
        last = max(
            [one.end for one in self.operations]
            + [call.end for call in self.calls]
            + [row[time] for row in rows for time in ("start", "end") if self.inside(row[time])]
            + [row["end"] for row in self.timed("PROFILER_OVERHEAD")]
            + [row["end"] for row in self.timed("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")],  # those traced as nodes too
            default=0,
        )
        domains: dict[tuple[int, int], str] = {}
        for row in rows:
            if row["eventType"] == 75:
                domains.setdefault((process_of(row["globalTid"]), row["domainId"] or 0), self._text(row))
        found = []
        for row in self._shallow(self._sound_ranges()):
            end = last if row["end"] is None else row["end"]
            process, domain = process_of(row["globalTid"]), row["domainId"] or 0
            name = "" if domain == 0 else domains.get((process, domain), f"domain {domain}")
            text, is_op = without_op_numbers(self._text(row))
            found.append(
                Range(
                    row["start"],
                    max(end, row["start"]),
                    text,
                    "PyTorch ops" if is_op else name,
                    row["globalTid"] or 0,
                    process,
                )
            )
        return sorted(found, key=lambda one: (one.start, one.end))

    @staticmethod
    def _shallow(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        """Return the ranges inside fewer than 128 others of their thread; the longer of equal starts is outside."""
        open_on: dict[object, list[int]] = {}
        kept = []
        endless = [2**62 if row["end"] is None else row["end"] for row in rows]
        for at in sorted(range(len(rows)), key=lambda at: (rows[at]["start"], -endless[at], at)):
            start, thread = rows[at]["start"], rows[at]["globalTid"] or 0
            around = open_on[thread] = [end for end in open_on.get(thread, []) if end > start]
            if len(around) < 128:
                kept.append(at)
            if endless[at] > start:
                around.append(endless[at])
        return [rows[at] for at in sorted(kept)]

    def _text(self, row: dict[str, object]) -> str:
        text = row.get("text")
        if text is None:
            text = self.strings.get(row.get("textId"))
        return "(unnamed)" if text is None else str(text)

    def _devices(self) -> list[list[tuple[int, int]]]:
        """Return groups of (process, deviceId) pairs that are the same GPU."""
        pairs = sorted({(one.process, one.device) for one in self.operations})
        uuids = {
            ((row["pid"] or 0) & 0xFFFFFF, row["cudaId"]): row.get("uuid")
            for row in self.rows("TARGET_INFO_CUDA_DEVICE")
        }
        single = len(self.rows("TARGET_INFO_GPU")) == 1
        groups: dict[object, list[tuple[int, int]]] = {}
        for pair in pairs:
            key: object = pair
            if uuids.get(pair):
                key = uuids[pair]
            elif single and pair[1] == 0 and len(set(uuids.values())) < 2:
                key = next(iter(uuids.values()), "single")
            groups.setdefault(key, []).append(pair)
        return list(groups.values())


def mended(ordered: list[Operation]) -> list[Operation]:
    """Return work without rows that are there twice; work that reaches 100 us into the next of its stream ends there.

    That does not hold for migrations, nor for work of one launch if half of the work with its name overlaps so.
    """
    kept: dict[object, Operation] = {}
    for one in ordered:
        place = one.process, one.device, one.context, one.stream
        key = (one.table, place, one.start, one.end, one.correlation, one.name, one.size)
        kept.setdefault(key if one.correlation else one.row, one)
    streams: dict[object, list[Operation]] = {}
    for one in kept.values():
        streams.setdefault((one.process, one.device, one.context, one.stream), []).append(one)
    late = [
        (one, after)
        for work in streams.values()
        for one, after in pairwise(work)
        if one.end - after.start > 100_000 and not any((each.kind or "").startswith("um_") for each in (one, after))
    ]
    siblings = Counter(one.name for one, after in late if one.correlation and one.correlation == after.correlation)
    every = Counter(one.name for one in kept.values())
    for one, after in late:
        is_sibling = one.correlation and one.correlation == after.correlation
        if not (is_sibling and 2 * siblings[one.name] >= every[one.name]):
            one.end = after.start
    return sorted(kept.values(), key=lambda one: (one.start, one.end))


def role_of(name: str) -> tuple[str, bool]:
    if name in (
        "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize",
        "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize",
    ):  # fmt: skip
        return "sync", False
    if (
        name.startswith(("cudaMemcpy", "cuMemcpy"))
        and not name.endswith("Async")
        and "Peer" not in name
        and "Batch" not in name
    ):
        return "blocking_copy", True
    implicit = name in (
        "cudaFree", "cudaMalloc", "cudaHostAlloc", "cudaFreeHost",
        "cuMemFree", "cuMemAlloc", "cuMemHostAlloc", "cuMemFreeHost",
    )  # fmt: skip
    memory = name.startswith(
        (
            "cudaMalloc",
            "cudaFree",
            "cudaHostAlloc",
            "cuMemAlloc",
            "cuMemFree",
            "cuMemHostAlloc",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemAddress",
            "cudaHostRegister",
            "cudaHostUnregister",
            "cuMemHostRegister",
            "cuMemHostUnregister",
        )
    )
    return ("memory" if memory else "api"), implicit


def is_async_copy(name: str) -> bool:
    return name.startswith(("cudaMemcpy", "cuMemcpy")) and name.endswith("Async")
