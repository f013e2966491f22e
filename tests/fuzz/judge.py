"""Run a case's command in this process and say what is wrong with how it went; nothing, where all is well."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.cases import OLD, Case
from tests.fuzz.invariants import broken, miscounted, parsed
from tests.oracle import figures
from tests.test_against_oracle import differences

CONTENT = re.compile(r'<script type="application/json" id="content">(.*?)</script>', re.DOTALL)
AGAIN = "traceview: this report was analyzed before, and nothing changed"
FIGURES = ("devices", "host", "unmatched")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, what it printed, and the traceback of what it could not handle."""

    code: int
    out: str
    err: str
    raised: str


def judge(case: Case, scratch: Path) -> tuple[int, list[str]]:
    """Run a case; return its exit code and what was wrong. `scratch` is an empty folder for temporary files."""
    before = {path: _content(path) for path in case.inputs}
    beside = _listed(case.inputs[0].parent)
    ended = run(case.arguments, scratch, case.from_pages)
    wrong = list(_as_promised(case, ended))
    wrong += [f"{path.name!r} was changed" for path in case.inputs if _content(path) != before[path]]
    left = _listed(case.inputs[0].parent) - beside - set(case.outputs)
    wrong += [f"left behind: {sorted(path.name for path in left)}"] if left else []
    wrong += (
        [f"left among temporary files: {names}"] if (names := sorted(one.name for one in scratch.iterdir())) else []
    )
    if not wrong and ended.code == 0:
        wrong += _results(case, scratch)
    return ended.code, wrong


def run(arguments: tuple[str, ...], scratch: Path, from_pages: bool = False) -> Ended:
    """Run the command line in this process, with its streams in files, as what polars prints goes there too."""
    from traceview.cli import main
    from traceview.read import pages

    small = pages.SMALL
    argv, sys.argv = sys.argv, ["traceview", *arguments]
    handler, tempdir = signal.getsignal(signal.SIGTERM), tempfile.tempdir
    os.environ["TRACEVIEW_DEBUG"] = "1"
    tempfile.tempdir = str(scratch)
    pages.SMALL = 0 if from_pages else small  # type: ignore[misc]
    code, raised = 0, ""
    with tempfile.TemporaryFile(dir=scratch.parent) as out, tempfile.TemporaryFile(dir=scratch.parent) as err:
        with _streams(out.fileno(), err.fileno()):
            try:
                main()
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                code, raised = -1, traceback.format_exc()
        out.seek(0)
        err.seek(0)
        ended = Ended(code, out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace"), raised)
    sys.argv, tempfile.tempdir, pages.SMALL = argv, tempdir, small  # type: ignore[misc]
    signal.signal(signal.SIGTERM, handler)
    return ended


@contextmanager
def _streams(out: int, err: int) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    python = sys.stdout, sys.stderr
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = (open(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        sys.stdout, sys.stderr = python
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        os.close(kept[0])
        os.close(kept[1])


def _as_promised(case: Case, ended: Ended) -> Iterator[str]:
    """Yield where exit code, lines and files are not what the manual promises."""
    if ended.raised:
        yield ended.raised
        return
    if ended.code not in (0, 1, 2) or (ended.code == 1 and "--fail-if" not in case.arguments):
        yield f"exit code {ended.code}"
    if ended.code == 0 and ended.err and not ended.err.startswith(AGAIN):
        yield f"said on standard error: {ended.err[:2000]}"
    if ended.code == 2:
        yield from _refused(case, ended)
    elif any(not out.is_file() or out.read_bytes() == OLD for out in case.outputs):
        yield "an output is missing"


def _refused(case: Case, ended: Ended) -> Iterator[str]:
    """Yield what is wrong with a refusal: it is one line that names the file, and nothing was touched."""
    if ended.err.count("\n") != 1 or not ended.err.startswith("traceview: error: ") or ended.out:
        yield f"not one line: {ended.err[:2000]!r} {ended.out[:200]!r}"
    # What cannot be printed may stand there as anything.
    shown = ["".join(re.escape(c) if c.isprintable() else "." for c in path.name) for path in case.inputs]
    if case.command != "options" and not any(re.search(name, ended.err) for name in shown):
        yield f"names no file: {ended.err!r}"
    if "not enough memory" in ended.err:
        yield "out of memory"
    for out in case.outputs:
        if out in case.old and out.read_bytes() != OLD:
            yield f"{out.name}: the old one is gone"
        if out not in case.old and out.exists():
            yield f"{out.name} was written all the same"


def _results(case: Case, scratch: Path) -> list[str]:
    """Return what is wrong with what a command wrote, as far as its kind can tell."""
    wrong: list[str] = []
    for out in case.outputs:
        if case.command == "export":
            wrong += [] if out.stat().st_size else ["an empty trace"]
            if out.suffix == ".json":
                parsed(out.read_text(encoding="utf-8"))
        elif out.suffix == ".json":
            found = parsed(out.read_text(encoding="utf-8"))
            if case.arguments[0] == "analyze":
                wrong += _figures(case, found)
        elif out.suffix == ".html":
            wrong += _page(out.read_text(encoding="utf-8"))
        else:
            wrong += _copy(case, out, scratch)
    return wrong


def _figures(case: Case, found: dict[str, Any]) -> list[str]:
    wrong = list(broken(found))
    if case.sound and case.command != "options":
        try:
            wrong += miscounted(found, case.inputs[0])
            expected = figures(case.inputs[0])
        except (TypeError, KeyError, ValueError, OverflowError, sqlite3.Error, AttributeError):
            return wrong  # it knows real exports only
        if not any("wrong type" in note or "no column" in note for note in found["notes"]):
            wrong += [f"against the slow computation: {line}" for line in list(differences(expected, found))[:10]]
    return wrong


def _page(html: str) -> list[str]:
    wrong = [] if html.count("</script>") == html.count("<script") else ["a name ends a script of the page"]
    content = CONTENT.search(html)
    if content is None:
        return [*wrong, "the page has no content"]
    parsed(content[1])
    return wrong


def _copy(case: Case, out: Path, scratch: Path) -> list[str]:
    """A redacted copy is a sound database, and has the figures of the report."""
    connection = sqlite3.connect(f"{out.absolute().as_uri()}?immutable=1", uri=True)
    sound = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    if sound != [("ok",)]:
        return [f"the copy is damaged: {sound[:3]}"]
    both = []
    for number, report in enumerate((case.inputs[0], out)):
        json = out.with_name(f"copy{number}.json")
        ended = run(("analyze", str(report), "--json", str(json), "--no-html", "--quiet", "--no-cache"), scratch)
        both.append(parsed(json.read_text(encoding="utf-8")) if ended.code == 0 else ended.code or ended.raised)
    if not all(isinstance(one, dict) for one in both):
        return [] if type(both[0]) is type(both[1]) else [f"one can be analyzed, the other not: {str(both)[:300]}"]
    mine, theirs = ({key: _numbers(one[key]) for key in FIGURES} for one in both)
    return [f"redacted: {line}" for line in list(differences(mine, theirs))[:5]]


def _numbers(value: Any) -> Any:
    """Leave out what is text: names may be cleaned, and what ties may change places."""
    if isinstance(value, dict):
        return {key: _numbers(inner) for key, inner in value.items() if key != "longest"}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    return "" if isinstance(value, str) else value


def _content(path: Path) -> object:
    if path.is_dir():
        return {one.name: one.read_bytes() for one in path.iterdir()}
    return path.read_bytes()


def _listed(folder: Path) -> set[Path]:
    return set(folder.iterdir())
