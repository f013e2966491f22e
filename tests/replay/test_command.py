"""`traceview whatif`: tables, JSON, page and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.captures import sample
from tests.cli.command import Command
from tests.pages import inputs_of
from traceview.model.whatif import WhatIf
from traceview.pipeline import analyze
from traceview.replay.prediction import whatif
from traceview.report.screen import MAX_LINES
from traceview.report.timeline.rows import timeline_rows
from traceview.report.timeline.work import LOOKS

SERIAL = sample("trainer/serial.sqlite")


def test_tables_and_json(traceview: Command, tmp_path: Path) -> None:
    place = tmp_path / "whatif.json"
    code, out, err = traceview("whatif", SERIAL, "--json", place, "-v")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    assert "Pin host memory" in out and "Not applicable" in out
    document = json.loads(place.read_text())
    assert document["file"] == "serial.sqlite" and abs(document["replay_error"]) < 0.03
    assert document["predictions"][0]["change"] == "pin"
    assert set(document["predictions"][0]["path_ns"]) == set(document["path_ns"])
    assert place.read_text() == traceview("whatif", SERIAL, "--json", "-").out


def test_brief_names_the_limit_and_the_changes(traceview: Command) -> None:
    out = traceview("whatif", SERIAL).out
    assert len(out.splitlines()) <= MAX_LINES and max(map(len, out.splitlines())) <= 100
    assert "  Critical path, as measured: copies " in out and "  Pin host memory" in out
    assert "Not applicable" not in out and "assumes" not in out and "More with -v: what each prediction" in out


def test_critical_path_is_the_first_row_of_the_page(traceview: Command, tmp_path: Path) -> None:
    analysis = analyze(SERIAL)
    result = whatif(analysis)
    assert isinstance(result, WhatIf)
    first = timeline_rows(inputs_of(analysis), result.spans)[1][0]
    (path,) = first.rows
    (marks,) = path.lanes
    assert path.id == "path" and len(marks) == len(result.spans) > 100
    assert int((marks.end - marks.start).sum()) == sum(span.end_ns - span.start_ns for span in result.spans)
    assert {LOOKS[look] for look in marks.look.tolist()} >= {"compute", "copy"}
    place = tmp_path / "page.html"
    assert traceview("whatif", SERIAL, "--html", place, "--quiet") == (0, "", "")
    assert place.read_text().startswith("<!doctype html>")


def test_faster_kernel_by_name(traceview: Command) -> None:
    document = json.loads(traceview("whatif", SERIAL, "--faster", "multi_tensor_apply_kernel=4", "--json", "-").out)
    assert any(prediction["change"] == "faster:multi_tensor_apply_kernel=4" for prediction in document["predictions"])


def test_ranks_and_two_processes(traceview: Command) -> None:
    out = traceview("whatif", SERIAL, "--ranks", "2", "--gradients", "253MB", "-v").out
    assert "Data parallel on 2 GPUs (253 MB of gradients)" in out and "2 batches a step" in out
    out = traceview("whatif", sample("trainer/ddp.sqlite"), "--ranks", "4", "--gradients", "253MB", "-v").out
    out = " ".join(out.split())
    assert "this run has several ranks already" in out and "2 processes use GPUs here" in out


def test_errors_are_one_line(traceview: Command, tmp_path: Path) -> None:
    for arguments, message in (
        ((SERIAL, "--faster", "gemm"), "--faster gemm"),
        ((SERIAL, "--faster", "gemm=2"), "no kernel called gemm"),
        ((SERIAL, "--ranks", "2"), "--gradients belong together"),
        ((SERIAL, "--gradients", "253MB"), "--gradients belong together"),
        ((SERIAL, "--ranks", "2", "--gradients", "0"), "give the size of the gradients"),
        ((SERIAL, "--ranks", "2", "--gradients", "lots"), "invalid size 'lots'"),
        ((SERIAL, "--json", SERIAL), "different files"),
        ((SERIAL, "--html", "-"), "--html needs a file name"),
        ((SERIAL, "--iteration", "nothing"), "no range matches"),
        ((tmp_path / "none.sqlite",), "none.sqlite"),
    ):
        code, out, err = traceview("whatif", *arguments)
        assert code == 2 and out == "" and err.count("\n") == 1 and message in err


def test_base_and_changes_without_a_gain(traceview: Command) -> None:
    out = traceview("whatif", SERIAL, "--faster", "multi_tensor_apply_kernel=1.0001").out
    assert re.search(r"^  Percentages are of [\d.]+ ms, without the profiler$", out, re.MULTILINE)
    assert "  No gain: Kernel 1" in out and not re.search(r"[-+]0% ", out)


def test_capture_without_gpu_work_says_what_to_capture(traceview: Command) -> None:
    code, out, _ = traceview("whatif", sample("mpi/ring.sqlite"))
    assert code == 0 and "has no GPU work" in out and "nsys profile -t cuda,nvtx COMMAND" in " ".join(out.split())
