"""Invariants of `fleet`: rows add up, and skipped reports change nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.ended import Ended, run
from tests.fuzz.invariants import parsed, signs
from traceview.read.source import display_name

SOME_SKIPPED = 3
NAMED = ("label", "file", "reports", "skipped", "notes", "title", "text")


def of_fleet(case: Case, ended: Ended, scratch: Path, result: dict[str, Any]) -> Iterator[str]:
    """Yield each violated invariant of a document of `fleet`."""
    yield from signs(
        result, "", {"start_ns", "end_ns", "offset_ns", "session_offset_ns", "origin_ns", "lag_ns", "part_lag_ns"}
    )
    skipped, ranks = result["skipped"], result["ranks"]
    if len(result["reports"]) + len(skipped) != len(case.inputs):
        yield "a report is neither read nor skipped"
    if (ended.code == SOME_SKIPPED) != bool(skipped):
        yield f"exit code {ended.code} with {len(skipped)} skipped"
    if {rank["file"] for rank in ranks} != set(result["reports"]):
        yield "a report has no ranks"
    for rank in ranks:
        for line in _rank(rank):
            yield f"{rank['label']}: {line}"
    yield from _places(result)
    if skipped and len(set(case.inputs)) == len(case.inputs):
        yield from _without(case, scratch, result)


def _rank(rank: dict[str, Any]) -> Iterator[str]:
    parts = ("compute_ns", "exposed_communication_ns", "copies_ns", "idle_ns")
    if sum(rank[part] for part in parts) != rank["wall_ns"]:
        yield "the parts do not make the wall"
    if sum(rank["causes"].values()) != rank["idle_ns"]:
        yield "the causes do not make the idle time"
    if rank["own_ns"] != rank["wall_ns"] - rank["exposed_communication_ns"]:
        yield "own is not wall less exposed communication"
    if rank["last_count"] > rank["matched_count"]:
        yield "last in more collectives than there are"
    if rank["bare_wait_ns"] > rank["wait_ns"] or rank["bare_caused_ns"] > rank["caused_ns"]:
        yield "more bare waiting than waiting"


def _places(result: dict[str, Any]) -> Iterator[str]:
    count = len(result["ranks"])
    used = [item["rank"] for item in result["stragglers"]] + [
        place for item in result["waits"]["longest"] for place in (item["waiter"], item["last"])
    ]
    used += [place for item in result["collectives"] for place in item["ranks"]]
    if not all(0 <= place < count for place in used):
        yield "a rank that is not there"
    for group in result["collectives"]:
        if group["skew_ns"]["median"] > group["skew_ns"]["p95"] or group["last"]["count"] > group["count"]:
            yield f"the skews of {group['name']}"
        if len(set(group["ranks"])) != len(group["ranks"]) or len(group["ranks"]) < 2:
            yield f"the ranks of {group['name']}"
    if (heat := result["heat"]) is not None:
        steps = len(heat["iterations"])
        if any(len(row) != steps for name in ("wall_ns", "own_ns", "wait_ns") for row in heat[name]):
            yield "a row of the heat map has another length"
        if any(len(heat[name]) != count for name in ("wall_ns", "own_ns", "wait_ns")) or len(heat["steady"]) != steps:
            yield "the heat map has not a row a rank"


def _without(case: Case, scratch: Path, result: dict[str, Any]) -> Iterator[str]:
    """Yield the changes if the skipped reports are left out of the command line."""
    names = {f"/{item['file']}" for item in result["skipped"]}
    shown = {path: "/".join(["", *(display_name(Path(part)) for part in path.parts[1:])]) for path in case.inputs}
    read = [path for path in case.inputs if not shown[path].endswith(tuple(names))]
    if len(read) != len(result["reports"]):
        return
    json = scratch.parent / "without.json"
    gone = {str(path) for path in case.inputs} - {str(path) for path in read}
    given = [str(json) if item == str(case.outputs[0]) else item for item in case.arguments if item not in gone]
    ended = run((*given, "--no-html") if "--no-html" not in given and "--html" not in given else tuple(given), scratch)
    if ended.code not in (0, 1):
        yield f"without what was skipped: {ended}"
    elif _unnamed(other := parsed(json.read_text(encoding="utf-8"))) != _unnamed(result):
        changed = [key for key in result if _unnamed(result[key]) != _unnamed(other.get(key)) and key not in NAMED]
        yield f"without what was skipped: other {changed}"
    json.unlink(missing_ok=True)


def _unnamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unnamed(inner) for key, inner in value.items() if key not in NAMED}
    return [_unnamed(inner) for inner in value] if isinstance(value, list) else value
