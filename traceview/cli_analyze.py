"""The `analyze` command: a capture measured, or what was said of the same bytes the last time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceview.cli_options import EXPLAINED, all_options
from traceview.cli_output import complain, draws, print_out, progress
from traceview.errors import OutputError, RequestError

if TYPE_CHECKING:
    from traceview.cache import Look, Store
    from traceview.model import Analysis, Trace

CHECK_FAILED = 1
STDOUT = "-"
FROM_CACHE = "traceview: this report was analyzed before, and nothing changed; --no-cache analyzes it again"

Step = Callable[[str, float], None]
Answers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an analysis is told: every option that changes its figures."""

    start: str | None
    end: str | None
    range_name: str | None
    device: str | None
    iteration: str | None
    skip: int | None
    top: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which answers one run of the command needs; each has a name that says all it depends on besides Asked."""

    page: Path | None
    detail: int | None
    json_path: Path | None
    conditions: tuple[str, ...]
    summary: bool
    unicode: bool
    colour: bool

    def names(self) -> tuple[str, ...]:
        """Return the names of the answers."""
        shown = f"summary {self.unicode} {self.colour}"
        wanted = {"json": self.json_path, "page": self.page, shown: self.summary or None}
        named = {"json": "json", "page": f"page {self.detail}", shown: shown}
        outputs = [named[kind] for kind, place in wanted.items() if place is not None]
        return (*outputs, *(f"fail-if {condition}" for condition in self.conditions))


@click.command(epilog=EXPLAINED, short_help="Measure a capture, price its losses, write the page.")
@all_options
def analyze(
    report: Path,
    html: Path | None,
    no_html: bool,
    detail: int | None,
    opened: bool,
    json_path: Path | None,
    conditions: tuple[str, ...],
    no_cache: bool,
    quiet: bool,
    **asked: Any,
) -> None:
    """Analyze REPORT: an export of nsys (.sqlite and others), a .nsys-rep, or a Chrome trace of torch.profiler.

    Writes one offline HTML page and prints a summary.
    """
    page = _page(report, html, no_html)
    if page is None and (opened or detail is not None):
        raise RequestError("--open and --detail are about the page; they do not go with --no-html")
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    summary = not quiet and not _is_stdout(json_path)
    wanted = Wanted(page, detail, json_path, conditions, summary, draws("█▓▒░·…µ"), colour)
    with _look(report, Asked(**asked), no_cache) as look:
        known = look.answers(wanted.names()) if look is not None else None
        answers = known if known is not None else _made(report, Asked(**asked), wanted, look, quiet)
        if known is not None:
            _check_places(report, wanted)
        _write(answers, wanted)
        if opened and page is not None:
            click.launch(page.resolve().as_uri())
        failed = _say(answers, wanted)
        if known is not None and not quiet:
            complain(FROM_CACHE)
        elif look is not None and known is None:
            look.keep(answers)
    if failed:
        sys.exit(CHECK_FAILED)


@contextmanager
def _look(report: Path, asked: Asked, no_cache: bool) -> Iterator[Look | None]:
    from traceview.cache import Look, Store, folder

    place = None if no_cache else folder()
    look = None if place is None else Look.at(report, astuple(asked), Store(place))
    try:
        yield look
    finally:
        if look is not None:
            look.end()


def _shelf() -> Store | None:
    """Return where plotly.js is kept: it says nothing of any report, so --no-cache is not about it."""
    from traceview.cache import Store, folder

    place = folder()
    return None if place is None else Store(place)


def _made(report: Path, asked: Asked, wanted: Wanted, look: Look | None, quiet: bool) -> Answers:
    """Return the answers of a new analysis; nothing is written before all of them are made."""
    from traceview.read.formats import check_capture

    checks = _checks(wanted.conditions)
    check_capture(report)
    _check_places(report, wanted)
    if look is not None:
        look.begin()
    with progress(quiet) as step:
        analysis = analysis_of(report, step, asked)
        answers = {f"fail-if {one}": "\n".join(failures(analysis)) for one, failures in checks.items()}
        step("write", 0.95)
        for name in wanted.names():
            if name not in answers:
                answers[name] = _rendered(name.split()[0], analysis, wanted, asked)
        return answers


def _checks(conditions: tuple[str, ...]) -> dict[str, Callable[[Analysis], Iterator[str]]]:
    """Return what says by how much each condition fails. Raises RequestError."""
    if not conditions:
        return {}
    from traceview import fail_if

    return {one: partial(fail_if.failures, (fail_if.parse(one),)) for one in conditions}


def analysis_of(
    report: Path,
    step: Step,
    asked: Asked,
) -> Analysis:
    """Read and measure a report. Raises TraceviewError."""
    if asked.range_name is not None and (asked.start, asked.end) != (None, None):
        raise RequestError("--range and --from/--to narrow the same window; give one of them")
    from traceview.analyze import analyze as run
    from traceview.moment import window_of_times

    trace = _opened(report, step)
    return run(
        trace,
        window=window_of_times(trace, asked.start, asked.end),
        range_name=asked.range_name,
        device=asked.device,
        iteration=asked.iteration,
        skip=asked.skip,
        top=asked.top,
        progress=step,
    )


def _opened(report: Path, step: Step) -> Trace:
    from traceview.trace import open_trace

    step("read", 0.0)
    return open_trace(report)


def _rendered(kind: str, analysis: Analysis, wanted: Wanted, asked: Asked) -> str:
    if kind == "json":
        from traceview.report.to_json import to_json

        return to_json(analysis)
    if kind == "page":
        from traceview.report.html import DETAIL, render
        from traceview.report.library import library

        library(_shelf())
        return render(analysis, wanted.detail or DETAIL)
    from traceview.report import terminal

    return terminal.render(analysis, top=asked.top, unicode=wanted.unicode, colour=wanted.colour)


def _page(report: Path, html: Path | None, no_html: bool) -> Path | None:
    if html is not None and (no_html or _is_stdout(html)):
        raise RequestError("--html names the file for the page; it goes neither with --no-html nor with -")
    return None if no_html else html or report.with_name(f"{report.stem}.overlap.html")


def _is_stdout(path: Path | None) -> bool:
    return path is not None and str(path) == STDOUT


def _check_places(report: Path, wanted: Wanted) -> None:
    """Refuse outputs that would overwrite the report or each other, or that cannot be written."""
    from traceview.report.write import check_place

    outputs = [path for path in (wanted.page, wanted.json_path) if path is not None and not _is_stdout(path)]
    places = [path.resolve() for path in (report, *outputs)]
    if len(set(places)) < len(places):
        raise OutputError(f"{report.name}: the report, the page and the JSON must be three different files")
    for path in outputs:
        check_place(path)


def _write(answers: Answers, wanted: Wanted) -> None:
    from traceview.report.write import write_whole

    if wanted.page is not None:
        write_whole(wanted.page, answers[f"page {wanted.detail}"])
    if wanted.json_path is not None and not _is_stdout(wanted.json_path):
        write_whole(wanted.json_path, answers["json"])


def _say(answers: Answers, wanted: Wanted) -> list[str]:
    """Print the JSON or the summary, and which checks failed; return those."""
    from traceview.report.words import plain

    if _is_stdout(wanted.json_path):
        print_out(answers["json"])
    elif wanted.summary:
        text = answers[f"summary {wanted.unicode} {wanted.colour}"]
        print_out(text if wanted.page is None else f"{text}\nThe page: {plain(str(wanted.page), 4000)}\n")
    failed = [line for one in wanted.conditions for line in answers[f"fail-if {one}"].splitlines()]
    for line in failed:
        complain(f"traceview: --fail-if {line}")
    return failed
