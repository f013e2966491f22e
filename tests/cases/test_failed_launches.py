"""A launch that failed leads the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import change, shared
from traceview.pipeline import analyze

RESULTS = {209: "no kernel image for this GPU", 2: "out of memory", 700: "illegal address", 998: "error 998"}
LAUNCH = (
    "SELECT rowid FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN"
    " (SELECT id FROM StringIds WHERE value LIKE 'cudaLaunchKernel%')"
)


@pytest.mark.parametrize("result", RESULTS)
def test_answer_begins_with_a_launch_that_failed(report: Path, result: int) -> None:
    """Two launches return an error."""
    change(report, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = {result} WHERE rowid IN ({LAUNCH} LIMIT 2)")
    analysis = analyze(report)
    assert analysis.answer.text.startswith(f"2 launches failed (cudaLaunchKernel: {RESULTS[result]}) and did not run. ")
    assert analysis.info.trust.verdict == "doubtful"


def test_error_of_a_kernel_that_a_wait_returns_leads(report: Path) -> None:
    """After an illegal address nothing runs, whichever call returns it."""
    first = "SELECT min(rowid) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN"
    names = "(SELECT id FROM StringIds WHERE value LIKE 'cudaStreamSynchronize%')"
    change(report, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 700 WHERE rowid = ({first} {names})")
    start = "A CUDA call failed (cudaStreamSynchronize: illegal address), after which nothing runs on the GPU. "
    assert analyze(report).answer.text.startswith(start)


def test_other_failed_calls_lead_nothing(report: Path) -> None:
    """An allocation that fails is tried again."""
    first = "SELECT min(rowid) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN"
    names = "(SELECT id FROM StringIds WHERE value LIKE 'cudaMemcpyAsync%')"
    change(report, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 2 WHERE rowid = ({first} {names})")
    assert analyze(report).answer.text.startswith("PyTorch training")


def test_real_capture_without_a_kernel_image() -> None:
    """A program for another GPU."""
    analysis = analyze(shared("public/simplek.sqlite.xz"))
    start = "1 launch failed (cudaLaunchKernel: no kernel image for this GPU) and did not run."
    assert analysis.answer.text.startswith(start)
    assert "would save" not in analysis.answer.text  # a shorter start of a program that fails gains nothing
    # What follows the last recorded work is not the end of the run.
    assert "after_loop" not in [finding.id for finding in analysis.findings]
