"""Reads a trace with json and Decimal, event by event: slow and simple, for comparison."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

GPU = {"kernel": "kernel", "Kernel": "kernel", "gpu_memcpy": "memcpy", "Memcpy": "memcpy"} | {
    "gpu_memset": "memset",
    "Memset": "memset",
}
OLD_RANGES = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#")
CALLS = ("cuda_runtime", "cuda_driver", "Runtime")


@dataclass(frozen=True)
class Plain:
    """Intervals count from the first event, in ns, sorted; copies are (bytes, name)."""

    gpu: dict[str, list[tuple[int, int]]]
    calls: list[tuple[int, int, str]]
    ranges: list[tuple[int, int, str]]
    copies: Counter[tuple[int, str]]


def read_plainly(path: Path) -> Plain:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode("utf-8", "replace")
    events = [item for item in json.loads(text, parse_float=Decimal)["traceEvents"] if item.get("ph") == "X"]
    for item in events:
        if item.get("cat") == "Operator" and item["name"].startswith(OLD_RANGES):
            item["cat"] = "user_annotation"
    wanted = (*GPU, *CALLS, "user_annotation")
    zero = min((ns(item["ts"]) for item in events if item.get("cat") in (*wanted, "overhead")), default=0)

    def interval(item: dict[str, Any]) -> tuple[int, int]:
        start = ns(item["ts"]) - zero
        return start, start + ns(item["dur"])

    gpu: dict[str, list[tuple[int, int]]] = {sort: [] for sort in ("kernel", "memcpy", "memset")}
    for item in events:
        if item.get("cat") in GPU:
            gpu[GPU[item["cat"]]].append(interval(item))
    return Plain(
        {sort: sorted(actual) for sort, actual in gpu.items()},
        sorted((*interval(item), item["name"]) for item in events if item.get("cat") in CALLS),
        sorted((*interval(item), item["name"]) for item in events if item.get("cat") == "user_annotation"),
        Counter(
            (item["args"].get("bytes", 0), item["name"])
            for item in events
            if item.get("cat") in ("gpu_memcpy", "Memcpy")
        ),
    )


def ns(microseconds: int | Decimal) -> int:
    return int((Decimal(microseconds) * 1000).quantize(Decimal(1), ROUND_HALF_UP))
