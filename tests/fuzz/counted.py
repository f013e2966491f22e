"""How many kernels a file of JSON holds, read in the plainest way; nothing where two readers may differ."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

TORCH = ("kernel", "Kernel")


def kernels_in(path: Path) -> int | None:
    """Return the number of kernels in a trace of torch.profiler or in nsys's lines of JSON; None for all else."""
    if not path.is_file():
        return None
    try:
        text = _unpacked(path.read_bytes()).decode("utf-8")
        lines = text.split("\n")
        strings = '"data"' in lines[0][:40] and '"traceEvents"' not in lines[0]
        if text.lstrip().startswith('{"Type"') or strings:
            return sum(is_record(line) for line in lines)
        events = _loaded(text)["traceEvents"]
    except (ValueError, TypeError, KeyError, RecursionError, EOFError, OSError, lzma.LZMAError, AttributeError):
        return None
    return sum(one.get("ph") == "X" and one.get("cat") in TORCH for one in events if isinstance(one, dict))


def _unpacked(data: bytes) -> bytes:
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    return lzma.decompress(data) if data.startswith(b"\xfd7zXZ") else data


def _loaded(text: str) -> Any:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice in an object")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


def is_record(line: str) -> bool:
    """Is a line nsys's record of a kernel? They all begin with the number of their type."""
    found = _loaded(line) if line.strip() else {}
    return (
        isinstance(found, dict)
        and next(iter(found), "") == "Type"
        and type(found["Type"]) is int
        and found["Type"] >= 0
        and isinstance(found.get("CudaEvent"), dict)
        and isinstance(found["CudaEvent"].get("kernel"), dict)
    )
