"""Analysis of many reports: find them, read them in workers and merge the results into one Fleet."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path

from traceview.errors import NotFoundError, ReportError, RequestError
from traceview.model.fleet import Fleet, ReportResult, Skipped
from traceview.ranks.merge import DEFAULT_MARGIN, MAX_SHOWN, merge
from traceview.ranks.processes import in_executor, in_processes
from traceview.ranks.worker import Task, read
from traceview.read.formats import RANK_IN_NAME, kind_of, rank_traces, trace_rank
from traceview.read.kineto import KinetoReader
from traceview.read.nsys_rep import CHOSEN
from traceview.read.source import MAX_DECODED, display_name, table_files
from traceview.read.stretch import BYTES_PER_FILE_BYTE, BYTES_PER_PROCESS, free_memory

Progress = Callable[[str, float], None]


def fleet(
    *reports: str | Path,
    iteration: str | None = None,
    skip: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    margin: float = DEFAULT_MARGIN,
) -> Fleet:
    """Combine the reports of many ranks (docs/fleet.md).

    Args:
        reports: Files, folders, and patterns such as "runs/rank*.sqlite".
        iteration: A regular expression on the names of the ranges that are iterations, as in `analyze`.
        skip: The number of warm-up iterations of each rank.
        workers: The number of processes; by default one per CPU, but no more than have memory.
        executor: Where to read the reports instead, such as the `get_executor()` of a Dask client. Its workers see the
            reports under the same absolute paths, and have the same version of traceview.
        margin: A rank is a straggler if its own time exceeds the others' by this share, from 0 to 1.

    Returns:
        The figures of each rank in ns per iteration, and the reports that were skipped with the reason.

    Raises:
        TraceviewError: No report is found, or none can be read.
    """
    paths = find_reports([str(report) for report in reports])
    return analyze_reports(paths, iteration=iteration, skip=skip, workers=workers, executor=executor, margin=margin)


def analyze_reports(
    reports: Sequence[Path],
    *,
    iteration: str | None = None,
    skip: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    margin: float = DEFAULT_MARGIN,
    max_shown: int | None = MAX_SHOWN,
    progress: Progress | None = None,
) -> Fleet:
    """Read reports and merge their results, which do not depend on where the reports are read.

    `workers` is the number of processes on this machine (default: one per CPU, but no more than have memory).
    `executor` reads them in its own workers instead. A rank is a straggler if its own time exceeds the others' by
    `margin`, a fraction. `max_shown` limits the arrivals at collectives in the result's timeline.

    The result names unreadable reports as skipped. Raises ReportError if no report can be read.
    """
    step = progress or (lambda _step, _done: None)
    paths, files = [report.absolute() for report in reports], report_names(reports)
    nsys, limit = CHOSEN.get(), MAX_DECODED.get()
    tasks = [Task(str(path), iteration, skip, nsys, limit) for path in paths]
    if executor is None:
        calls = in_processes(read, tasks, workers or default_workers(paths))
    else:
        calls = in_executor(read, tasks, executor)
    results: dict[int, ReportResult] = {}
    skipped: dict[int, Skipped] = {}
    step(f"read 0 of {len(files)}", 0.0)
    with closing(calls):
        for done, (index, result) in enumerate(calls, 1):
            if isinstance(result, str):
                skipped[index] = Skipped(files[index], result)
            else:
                results[index] = result
            more = f", {len(skipped):,} skipped" if skipped else ""
            step(f"read {done:,} of {len(files):,}{more}", 0.9 * done / len(files))
    unread = [skipped[index] for index in sorted(skipped)]
    if not results:
        count = len(unread) - 1
        more = f" ({count} more report{'s' * (count != 1)} cannot be read either)" if count else ""
        raise ReportError(f"{unread[0].file}: {unread[0].reason}{more}")
    step("merge", 0.9)
    order = sorted(results)
    return merge(
        [files[index] for index in order],
        [results[index] for index in order],
        unread,
        margin=margin,
        max_shown=max_shown,
    )


def default_workers(reports: Sequence[Path]) -> int:
    """Return the number of processes that read reports: one for each CPU and report, while all have memory."""
    largest = max((path.stat().st_size for path in reports if path.is_file()), default=0)
    room = free_memory() // int(largest * BYTES_PER_FILE_BYTE + BYTES_PER_PROCESS)
    return max(1, min(available_cpus(), len(reports), room))


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1


PACKED = ("", ".gz", ".xz", ".zst")
SQLITE, TRACES = (tuple(f"{suffix}{packed}" for packed in PACKED) for suffix in (".sqlite", ".json"))
REPORT = ".nsys-rep"
NUMBER = re.compile(r"(\d+)")


def find_reports(arguments: Sequence[str]) -> tuple[Path, ...]:
    """Return each report once, in the order of the numbers in its name. Raises NotFoundError if an argument has none.

    Folders and patterns leave out a .nsys-rep whose .sqlite export is in the same folder. If a folder has a report of
    nsys, its traces of torch.profiler are left out. Traces are sorted by rank if each has a different rank.

    Raises RequestError if such a folder has several traces of a rank, an argument is an address, or nothing is named.
    """
    if not arguments:
        raise RequestError("no report is named; name .sqlite files, a folder or a pattern")
    reports: dict[str, Path] = {}
    for argument in arguments:
        if "://" in argument:
            raise RequestError(
                f"{_printable(argument)}: addresses are not read; copy the reports here, or mount the store"
            )
        paths = _reports_of(argument)
        if not paths:
            raise NotFoundError(
                f"{_printable(argument)}: no report found; name .sqlite files, traces, a folder or a pattern"
            )
        for path in paths:
            # Links are not resolved: two links to one report are two reports.
            reports.setdefault(str(path.absolute()), path)
    ordered = tuple(sorted(reports.values(), key=_natural_order))
    return tuple(rank_traces(ordered).values()) or ordered


def _reports_of(argument: str) -> list[Path]:
    path = Path(argument)
    if _is_folder(path) and not table_files(path):
        # What cannot be searched is left out. Links to folders are not followed.
        entries = [Path(parent, name) for parent, folders, files in os.walk(path) for name in (*folders, *files)]
        return _without_exported(entry for entry in entries if _is_report(entry)) or _traces(argument, entries)
    if os.path.lexists(path) or not glob.has_magic(argument):
        # A missing file is reported later, with the other unreadable reports.
        return [path]
    matches = [Path(match) for match in glob.glob(argument, recursive=True)]  # noqa: PTH207 - absolute ones too
    # The suffix of other formats says too little: a trace of torch.profiler is a .json file.
    return _without_exported(
        [path for path in matches if _is_report(path)] or [path for path in matches if not _is_folder(path)]
    )


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder; False for a path that cannot be read, such as a link to itself."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _is_report(path: Path) -> bool:
    return bool(table_files(path)) if _is_folder(path) else path.name.endswith((*SQLITE, REPORT))


def _traces(argument: str, entries: Iterable[Path]) -> list[Path]:
    """Return the traces of torch.profiler among the files of a folder. Raises RequestError if a rank has several."""
    named = [entry for entry in entries if entry.name.endswith(TRACES)]
    traces = sorted((path for path in named if kind_of(path) == KinetoReader.kind), key=_natural_order)
    by_rank: dict[int, Path] = {}
    for path in traces:
        if (rank := trace_rank(path)) is not None and (other := by_rank.setdefault(rank, path)) != path:
            raise RequestError(
                f"{_printable(argument)}: several traces of rank {rank}, {display_name(other)} and "
                f"{display_name(path)}; name one trace of each rank"
            )
    return traces


def _without_exported(paths: Iterable[Path]) -> list[Path]:
    """Return the paths without each .nsys-rep that has an export among them."""
    candidates = list(paths)
    exported = {_without_suffix(path) for path in candidates if not path.name.endswith(REPORT)}
    return [path for path in candidates if not path.name.endswith(REPORT) or _without_suffix(path) not in exported]


def _without_suffix(path: Path) -> Path:
    for suffix in (*SQLITE, REPORT):
        if path.name.endswith(suffix):
            return path.with_name(path.name.removesuffix(suffix))
    return path


def _natural_order(path: Path) -> list[tuple[int, str]]:
    parts = NUMBER.split(str(path.absolute()))
    return [(int(part), part) if part.isdigit() and len(part) < 19 else (-1, part) for part in parts]


def report_names(reports: Sequence[Path]) -> tuple[str, ...]:
    """Return each report's file name, or its path below the common folder if file names repeat.

    Names of traces that do not contain their rank begin with it.
    """
    absolute = [report.absolute() for report in reports]
    names = [path.name for path in absolute]
    if len(set(names)) == len(names):
        ranks = {path: rank for rank, path in rank_traces(reports).items()}
        unnamed = ranks and not all(RANK_IN_NAME.search(name) for name in names)
        return tuple(
            f"rank {ranks[report]} · {name}" if unnamed and report in ranks else name
            for report, name in zip(reports, names, strict=True)
        )
    common = os.path.commonpath([path.parent for path in absolute])
    return tuple(str(path.relative_to(common)) for path in absolute)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
