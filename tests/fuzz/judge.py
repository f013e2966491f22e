"""Run the command of a case in this process and return the problems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.cases import OLD, Case
from tests.fuzz.ended import Ended, run
from tests.fuzz.results import results

FAILED_CHECK = 1
MISTAKE = "internal error"


def judge(case: Case, scratch: Path) -> tuple[int, list[str]]:
    """Run a case; return its exit code and problems. `scratch` is an empty folder for temporary files."""
    before = {path: _content(path) for path in case.inputs}
    beside = _listed(case)
    ended = run(case.arguments, scratch, case.way)
    wrong = list(_as_promised(case, ended))
    wrong += [f"{path.name!r} was changed" for path in case.inputs if _content(path) != before[path]]
    left = _listed(case) - beside - set(case.outputs)
    wrong += [f"left behind: {sorted(path.name for path in left)}"] if left else []
    wrong += (
        [f"left among temporary files: {names}"] if (names := sorted(item.name for item in scratch.iterdir())) else []
    )
    if not wrong and ended.code == 0:
        wrong += results(case, ended, scratch)
    return ended.code, wrong


def _as_promised(case: Case, ended: Ended) -> Iterator[str]:
    """Yield exit codes, messages and files that break the promises of the documentation."""
    if ended.raised:
        yield ended.raised
        return
    checked = "--fail-if" in case.arguments
    if ended.code not in ({0, FAILED_CHECK, 2} if checked else {0, 2}):
        yield f"exit code {ended.code}"
    if odd := {item for item in ended.out + ended.err if not item.isprintable() and item != "\n"}:
        yield f"printed {sorted(odd)!r}"
    if MISTAKE in ended.out + ended.err or any(MISTAKE in _text(out) for out in case.outputs):
        yield "a report was skipped because of an internal error"
    if ended.code == 2:
        yield from _refused(case, ended)
        return
    for line in ended.err.splitlines():
        if not (checked and line.startswith("traceview: --fail-if ")):
            yield f"said on standard error: {line[:2000]}"
    if any(not out.exists() or (out.is_file() and out.read_bytes() == OLD) for out in case.outputs):
        yield "an output is missing"


def _refused(case: Case, ended: Ended) -> Iterator[str]:
    """Yield problems with an error: it must be one line that names the file, with no file changed."""
    if ended.err.count("\n") != 1 or not ended.err.startswith("traceview: error: ") or ended.out:
        yield f"not one line: {ended.err[:2000]!r} {ended.out[:200]!r}"
    # Unprintable characters may be replaced by any text.
    shown = ["".join(re.escape(c) if c.isprintable() else "." for c in path.name) for path in case.inputs]
    may_be_refused = case.command == "options" or {"--fail-if", "--iteration"} & set(case.arguments)
    if not may_be_refused and not any(re.search(name, ended.err) for name in shown):
        yield f"names no file: {ended.err!r}"
    if "not enough memory" in ended.err:
        yield "out of memory"
    for out in case.outputs:
        if out in case.old and out.read_bytes() != OLD:
            yield f"{out.name}: the old one is gone"
        if out not in case.old and out.exists():
            yield f"{out.name} was written all the same"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _content(path: Path) -> object:
    if path.is_dir():
        return {item.name: _content(item) for item in path.iterdir()}
    if path.is_symlink():
        return path.readlink()
    return path.read_bytes() if path.exists() else None


def _listed(case: Case) -> set[Path]:
    return {item for folder in {path.parent for path in case.inputs} for item in folder.iterdir()}
