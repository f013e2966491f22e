"""What CI reads of a command: Markdown of `analyze` and `fleet`, and JUnit's XML of `--fail-if`."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.captures import SAMPLES, sample
from tests.cli.command import Command
from tests.exporters.hostile import hostile_export
from traceview import analyze

CHECKS = {
    "analyze": ("idle > 1%", "idle > 99%"),
    "compare": ("iteration > 3%", "iteration > 900%"),
    "fleet": ("straggler > 5%", "straggler > 900%"),
}
REPORTS = {
    "analyze": (sample("dual.sqlite"), "--no-html"),
    "compare": (sample("dual.sqlite"), sample("serial.sqlite"), "--fail-on-regression"),
    "fleet": (SAMPLES / "ranks", "--no-html", "--workers", "1"),
}


@pytest.mark.parametrize("command", CHECKS)
def test_junit_has_every_check(traceview: Command, tmp_path: Path, command: str) -> None:
    path = tmp_path / "checks.xml"
    checks = [word for check in CHECKS[command] for word in ("--fail-if", check)]
    done = traceview(command, *REPORTS[command], "--quiet", *checks, "--junit", path)
    suite = ElementTree.parse(path).getroot()
    failures = {case.get("name"): [failure.get("message") for failure in case] for case in suite}
    wrong, right = (f"--fail-if {check}" for check in CHECKS[command])
    assert done.code == 1 and failures[wrong] and not failures[right]
    assert [f"traceview: {message}" for lines in failures.values() for message in lines] == done.err.splitlines()
    assert ("--fail-on-regression" in failures) == (command == "compare")
    assert (suite.get("tests"), suite.get("failures")) == (
        str(len(failures)),
        str(sum(bool(lines) for lines in failures.values())),
    )


def test_markdown_of_an_analysis(traceview: Command, tmp_path: Path) -> None:
    done = traceview("analyze", sample("dual.sqlite"), "--no-html", "--markdown", "-")
    analysis = analyze(sample("dual.sqlite"))
    assert done.code == 0 and analysis.answer.text in done.out
    assert f"| {analysis.findings[0].title} |" in done.out
    assert "<" not in traceview("analyze", hostile_export(tmp_path / "h.sqlite"), "--no-html", "--markdown", "-").out


def test_markdown_of_a_fleet(traceview: Command) -> None:
    done = traceview("fleet", *REPORTS["fleet"], "--markdown", "-")
    assert done.code == 0 and "| slowhost\\_rank1 | 25.9 ms |" in done.out and "2 stragglers of 8 ranks" in done.out
