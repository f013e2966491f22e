"""The results of checks, `--fail-if` and `--fail-on-regression`: for the terminal, as Markdown and as JUnit's XML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from traceview.cli.outputs import print_error, write_output

EXIT_CHECK_FAILED = 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check by its option, the figure that it compared as text, whether it passed, and the sentence that says why."""

    condition: str
    value: str
    passed: bool
    reason: str


def with_checks(to_markdown: Callable[[], str], checks: Sequence[CheckResult]) -> str:
    """Return the Markdown of a result, with a table of the checks."""
    from traceview.report.screen import markdown_code, markdown_row, markdown_text

    rows = [
        (markdown_code(check.condition), "passed" if check.passed else "**failed**", markdown_text(check.reason))
        for check in checks
    ]
    table = ["", *map(markdown_row, (("check", "result", "figure"), ("---",) * 3, *rows)), ""] if rows else []
    return to_markdown() + "\n".join(table)


def junit_text(checks: Sequence[CheckResult]) -> str:
    """Return the checks as JUnit's XML, a test case for each."""
    from xml.etree import ElementTree

    from traceview.model.units import plain

    failed = sum(not check.passed for check in checks)
    suite = ElementTree.Element("testsuite", name="traceview", tests=str(len(checks)), failures=str(failed))
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="traceview", name=plain(check.condition, 2000))
        if not check.passed:
            ElementTree.SubElement(case, "failure", message=plain(f"{check.condition}: {check.reason}", 2000))
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def exit_if_failed(checks: Sequence[CheckResult], junit: Path | None) -> None:
    """Write the file of --junit, print the checks that failed, and exit with EXIT_CHECK_FAILED if there are any."""
    write_output(junit, partial(junit_text, checks))
    for check in checks:
        if not check.passed:
            print_error(f"traceview: {check.condition}: {check.reason}")
    if not all(check.passed for check in checks):
        sys.exit(EXIT_CHECK_FAILED)
