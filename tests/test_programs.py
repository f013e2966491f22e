"""Whole captures of programs whose limit is known, and whose time without it was measured (samples/README.md)."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from tests.captures import SAMPLES
from tests.oracle import figures
from tests.test_golden import as_in
from traceview.model.analysis import Analysis
from traceview.pipeline import analyze
from traceview.ranks.measure_report import measure_report
from traceview.ranks.merge import merge
from traceview.ranks.whatif import whatif_ranks
from traceview.report.analysis import document

PROGRAMS = SAMPLES / "programs"
RANKS = [PROGRAMS / f"sleeping_rank{rank}.sqlite.xz" for rank in range(2)]


@pytest.fixture(scope="module", params=["decode", "loader"])
def analyzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Analysis]:
    capture = tmp_path_factory.mktemp("programs") / f"{request.param}.sqlite"
    capture.write_bytes(lzma.decompress((PROGRAMS / f"{request.param}.sqlite.xz").read_bytes()))
    return request.param, capture, analyze(capture)


def test_programs_have_the_figures_of_the_oracle(analyzed: tuple[str, Path, Analysis]) -> None:
    _, capture, analysis = analyzed
    expected = figures(capture)
    assert as_in(expected, document(analysis)) == expected


def test_first_finding_is_the_limit(analyzed: tuple[str, Path, Analysis]) -> None:
    name, _, analysis = analyzed
    assert analysis.findings[0].id == {"decode": "launch_bound", "loader": "data_loading"}[name]


def test_collectives_of_one_rank_that_mostly_wait_name_the_late_rank_as_cause(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1, which sleeps; the shortest of each collective shows how long they take without it."""
    for rank, waits in ((0, True), (1, False)):
        capture = tmp_path / f"rank{rank}.sqlite"
        capture.write_bytes(lzma.decompress(RANKS[rank].read_bytes()))
        analysis = analyze(capture)
        (finding,) = (each for each in analysis.findings if each.id == "exposed_communication")
        assert ("mostly waits for other ranks" in finding.title) == waits
        assert (analysis.findings[0] is finding) == waits
        assert finding.gain.source == "bound"
    assert "Ranks that arrive together would save at most" in analyze(tmp_path / "rank0.sqlite").answer.text


def test_late_rank_and_its_step_without_the_sleep() -> None:
    fleet = merge([path.name for path in RANKS], [measure_report(path, None, None) for path in RANKS])
    (straggler,) = fleet.stragglers
    assert (fleet.ranks[straggler.rank].file, straggler.part) == ("sleeping_rank1.sqlite.xz", "host")
    predictions = {each.change: each for each in whatif_ranks(RANKS).predictions}
    after = 33_170_000  # the capture of the same program whose loader does not sleep
    for change in ("load", "load@sleeping_rank1", "without:sleeping_rank1"):
        assert abs(predictions[change].iteration_ns / after - 1) < 0.1
