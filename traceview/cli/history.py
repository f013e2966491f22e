"""`compare --history`: a file with one line of figures for each commit, and the commits where a figure changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from traceview.cli.outputs import check_outputs, print_out, progress, screen, write_output
from traceview.errors import RequestError


def show_history(
    path: Path,
    captures: Sequence[Path],
    commit: str | None,
    html: Path | None,
    json_path: Path | None,
    quiet: bool,
    options: dict[str, Any],
) -> None:
    """Add a capture, if one is given, and show the changes. `options` are those of analyze(). Raises TraceviewError.

    The line of a commit that the file has already is replaced.
    """
    if len(captures) != (commit is not None):
        raise RequestError("--history takes one capture and its --commit, or neither")
    from traceview.comparison.history import commit_figures, history, read_history, write_history
    from traceview.report.history import render, render_page, to_json

    check_outputs(captures, (path, html, json_path))
    commits = read_history(path)
    if commit is not None:
        from traceview.pipeline import analyze

        with progress(quiet) as step:
            added = commit_figures(analyze(captures[0], **options, progress=step), commit)
        commits = (*(row for row in commits if row.commit != commit), added)
        write_history(path, commits)
    result = history(commits)
    write_output(html, partial(render_page, result))
    if not write_output(json_path, partial(to_json, result)) and not quiet:
        print_out(render(result, screen()))
