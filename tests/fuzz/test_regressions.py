"""Regressions from fuzzing, each reduced to a small hand-made change of a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.captures import analyzed, change, sample
from tests.fuzz import corpus
from tests.fuzz.cases import Case
from tests.fuzz.ended import run
from tests.fuzz.invariants import broken, of_compare, parsed
from tests.fuzz.judge import judge
from tests.oracle import figures
from tests.oracle.differences import differences
from tests.pages import inputs_of
from traceview.comparison import compare
from traceview.errors import RequestError
from traceview.pipeline import analyze
from traceview.replay.prediction import predict
from traceview.report.analysis import document
from traceview.report.analysis.page import render
from traceview.report.comparison import document as compare_document

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
TIMED = (KERNEL, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME",
         "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "NVTX_EVENTS", "PROFILER_OVERHEAD")  # fmt: skip
EPOCH = 1_795_251_074_194_803_813  # ns since 1970, as nsys export --ts-normalize=true writes them


def judged(report: Path, command: str, *arguments: str) -> tuple[int, list[str]]:
    """Check a command on a report as the fuzzer does."""
    scratch = report.parent.parent / "temporary"
    scratch.mkdir(exist_ok=True)
    out = report.with_name("out.json")
    case = Case(
        0, "sqlite", command, (command, str(report), "--json", str(out), *arguments), (report,), (out,), origin=report
    )  # fmt: skip
    return judge(case, scratch)


def moved(result: Any, by: int, key: str = "") -> Any:
    """Return a document with its times shifted."""
    if isinstance(result, dict):
        return {name: moved(inner, by, name) for name, inner in result.items()}
    if isinstance(result, list):
        return [moved(inner, by, key) for inner in result]
    return (
        result + by if key in ("start_ns", "end_ns", "gpu_end_ns", "window_ns") and isinstance(result, int) else result
    )


def test_times_since_1970(report: Path) -> None:
    """Such times are beyond 2^60. All rows were left out."""
    before = document(analyze(report))
    change(report, *(f'UPDATE {table} SET start = start + {EPOCH}, "end" = "end" + {EPOCH}' for table in TIMED))
    result = analyze(report)
    assert list(differences(moved(before, EPOCH), document(result))) == []
    content = parsed(render(inputs_of(result)).split('id="content">')[1].split("</script>")[0])
    assert max(largest(content)) < 1 << 53, "a browser rounds larger numbers"


def largest(value: object) -> list[int]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return [value] if isinstance(value, int) else [0]
    return [0, *(number for item in inner for number in largest(item))]


@pytest.mark.parametrize("column", ["start", "end"])
@pytest.mark.parametrize("bit", [51, 61])
def test_flipped_bit_in_a_time(report: Path, column: str, bit: int) -> None:
    kernels = analyze(report).devices[0].kernel_count
    change(report, f'UPDATE {KERNEL} SET "{column}" = "{column}" | (1 << {bit}) WHERE rowid = 100')
    result = analyze(report)
    assert result.devices[0].kernel_count == kernels - 1
    assert sum(f"1 row of {KERNEL} left out" in note.text for note in result.notes) == 1
    assert list(differences(figures(report), document(result))) == []


def test_mark_far_from_the_capture(report: Path) -> None:
    plain = document(analyze(report))
    change(report, f"UPDATE NVTX_EVENTS SET start = {1 << 59} WHERE eventType NOT IN (59, 60)")
    assert document(analyze(report))["nvtx"] == plain["nvtx"]


@pytest.mark.parametrize("far", [(1 << 62) - 1, -(1 << 61), (1 << 63) - 1])
def test_extreme_times_do_not_overflow(report: Path, far: int) -> None:
    """Sums of such times overflowed: a NumPy warning and a negative span."""
    change(
        report,
        f'UPDATE {KERNEL} SET "end" = {far} WHERE rowid % 7 = 3',
        f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = {far} WHERE rowid % 7 = 3",
        f'UPDATE NVTX_EVENTS SET "end" = {far} WHERE rowid % 5 = 3',
    )
    assert list(broken(document(analyze(report)))) == []
    assert judged(report, "analyze", "--no-html") == (0, [])


@pytest.mark.parametrize("command", ["analyze", "info", "redact"])
def test_schema_names_that_are_not_text(report: Path, command: str) -> None:
    """SQLite quotes the names in its message, which Python could not decode."""
    data = report.read_bytes()
    at = data.index(b"CREATE TABLE PROFILER_OVERHEAD")
    report.write_bytes(data[:at] + b"CREATE \xcd\xfe\xff" + data[at + 10 :])
    ended = run(
        (command, str(report), *((str(report.with_name("out")),) if command == "redact" else ())), report.parent
    )
    assert (ended.code, ended.raised) == (2, "")
    assert ended.err.startswith("traceview: error: report.sqlite: ") and ended.err.count("\n") == 1


def test_impossible_sizes_are_ignored(report: Path) -> None:
    """Fifteen copies of 2^61 bytes gave a negative sum."""
    change(report, "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = 1 << 61 WHERE rowid % 2 = 0")
    result = analyze(report)
    assert all(0 <= row.bytes < 1 << 40 for device in result.devices for row in device.copies)
    assert [note for note in result.notes if "impossible number of bytes" in note.text]


@pytest.mark.parametrize("hidden", ['"a": {}}, {"cat": "kernel"}, "', "x", "{", "1, 2", ",,"])
def test_text_after_the_last_event(tmp_path: Path, hidden: str) -> None:
    """A flipped quote silently hid events up to the next bracket."""
    path = tmp_path / "trace.json"
    event = '{"ph": "X", "cat": "kernel", "name": "f", "ts": 1, "dur": 2, "args": {}}'
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{event}, {event} ]}}')
    assert analyze(path).devices[0].kernel_count == 2
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{event}, {event} {hidden}]}}')
    read = analyze(path)
    assert read.devices[0].kernel_count == (2 if hidden == ",," else 1)
    said = ("not valid JSON", "last whole event")
    assert [note for note in read.notes if any(words in note.text for words in said)] or hidden == ",,"


def test_predicted_time_is_never_negative(tmp_path: Path) -> None:
    """Graphs that end at one time had a large replay error and a negative lower bound; now they are cut."""
    (tmp_path / "report").mkdir()
    report = corpus.thinned("cudagraph", 1, tmp_path / "report" / "report.sqlite")
    change(report, f'UPDATE CUPTI_ACTIVITY_KIND_GRAPH_TRACE SET "end" = {(1 << 31) - 1}')
    assert judged(report, "whatif") == (0, [])


def test_page_of_threads_without_calls(tmp_path: Path) -> None:
    """The page failed for threads without calls."""
    (tmp_path / "report").mkdir()
    report = corpus.thinned("scenarios/managed", 1, tmp_path / "report" / "report.sqlite")
    change(report, "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = 'nccl'")
    page = report.with_name("out.html")
    ended = run(("analyze", str(report), "--html", str(page), "--quiet"), tmp_path)
    assert (ended.code, ended.raised, page.is_file()) == (0, "", True)


def test_work_before_its_launch_is_not_replayed(tmp_path: Path) -> None:
    """Seeds 23000539 and 24000462: a copy starts at 0, before work on its stream that precedes its call."""
    (tmp_path / "report").mkdir()
    report = corpus.thinned("scenarios/graph_nodes", 1, tmp_path / "report" / "report.sqlite")
    copies = "CUPTI_ACTIVITY_KIND_MEMCPY"
    change(report, f"UPDATE {copies} SET start = 0 WHERE start = (SELECT MAX(start) FROM {copies} WHERE copyKind = 1)")
    ended = run(("whatif", str(report)), tmp_path)
    text = " ".join(ended.out.split())
    assert (ended.code, ended.err, ended.raised) == (0, "", "")
    assert text.startswith("report.sqlite · no model predicts changes: ")
    assert " 1 of 144 operations start before the calls that launched them; export" in text
    ended = run(("whatif", str(report), "--json", "-"), tmp_path)
    assert (ended.code, ended.out) == (2, "") and ": nothing can be predicted: " in ended.err
    message = r"report\.sqlite: the times of its iterations are contradictory: .* operations start before the calls"
    with pytest.raises(RequestError, match=message):
        predict(analyze(report), ["sync"])


def test_overlapping_parts_of_a_comparison() -> None:
    """Seed 32000512 and 19 more: only the shared part is negative, and was reported as a negative time."""
    analysis = analyzed(sample("ddp2.sqlite"))
    result: Any = compare_document(compare(analysis, analysis))
    parts = result["against"][0]["mean_parts"]
    assert parts["twice"]["mean_before_ns"] < 0
    assert list(of_compare(result, same=True)) == []
    parts["compute"]["after_ns"], parts["twice"]["mean_after_ns"] = -1, 1
    assert sum(text.startswith("a time of the wrong sign") for text in of_compare(result, same=True)) == 2
