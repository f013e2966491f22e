"""What a trace says, read in the plainest way: json, Decimal, one event after the other. Slow and obvious."""

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
    events = [one for one in json.loads(text, parse_float=Decimal)["traceEvents"] if one.get("ph") == "X"]
    for one in events:
        if one.get("cat") == "Operator" and one["name"].startswith(OLD_RANGES):
            one["cat"] = "user_annotation"
    wanted = (*GPU, *CALLS, "user_annotation")
    zero = min((ns(one["ts"]) for one in events if one.get("cat") in (*wanted, "overhead")), default=0)

    def interval(one: dict[str, Any]) -> tuple[int, int]:
        start = ns(one["ts"]) - zero
        return start, start + ns(one["dur"])

    gpu: dict[str, list[tuple[int, int]]] = {sort: [] for sort in ("kernel", "memcpy", "memset")}
    for one in events:
        if one.get("cat") in GPU:
            gpu[GPU[one["cat"]]].append(interval(one))
    return Plain(
        {sort: sorted(found) for sort, found in gpu.items()},
        sorted((*interval(one), one["name"]) for one in events if one.get("cat") in CALLS),
        sorted((*interval(one), one["name"]) for one in events if one.get("cat") == "user_annotation"),
        Counter(
            (one["args"].get("bytes", 0), one["name"]) for one in events if one.get("cat") in ("gpu_memcpy", "Memcpy")
        ),
    )


def ns(microseconds: int | Decimal) -> int:
    return int((Decimal(microseconds) * 1000).quantize(Decimal(1), ROUND_HALF_UP))
