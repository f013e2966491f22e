"""Analysis of many reports: find them, read them in workers and merge the results into one Fleet."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from traceview.errors import NotFoundError, ReportError, RequestError
from traceview.model.fleet import Fleet, ReportResult, Skipped
from traceview.ranks.merge import DEFAULT_MARGIN, MAX_SHOWN, merge_reports
from traceview.ranks.partials import FleetReports, P, SharedColumns, Work
from traceview.ranks.worker import Job, Report, forget_run, loaded, measure_kept, read_and_keep
from traceview.read import parquet
from traceview.read.formats import RANK_IN_NAME, kind_of, rank_traces, trace_rank
from traceview.read.kineto import KinetoReader
from traceview.read.nsys_rep import CHOSEN
from traceview.read.remote import find_remote, is_url, path_of
from traceview.read.source import MAX_DECODED, display_name
from traceview.workers import WorkerDiedError, Workers
from traceview.workers.cluster import DaskWorkers
from traceview.workers.processes import Processes

MAX_MEASURED_HERE = 256  # reports; sending the work takes longer than measuring so many
REPORTS_PER_LEAF = 32
DIED = "the process that read it died twice, probably out of memory; use fewer --workers"

Leaf = list[tuple[int, Report]]  # results that one worker measures, each with the index of its first rank
Progress = Callable[[str, float], None]


def fleet(
    *reports: str | Path,
    iteration: str | None = None,
    skip: int | None = None,
    workers: int | None = None,
    margin: float = DEFAULT_MARGIN,
) -> Fleet:
    """Combine the reports of many ranks: files, folders and patterns such as "runs/rank*.sqlite".

    `iteration` and `skip` are those of analyze(); `workers` and `margin` are those of analyze_reports().

    Raises TraceviewError if no report is found or can be read; the result names the skipped reports.
    """
    paths = find_fleet([str(report) for report in reports])
    return analyze_reports(paths, Job(iteration, skip), workers=workers, margin=margin)


def analyze_reports(
    reports: Sequence[Path | str],
    job: Job | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    margin: float = DEFAULT_MARGIN,
    max_shown: int | None = MAX_SHOWN,
    progress: Progress | None = None,
) -> Fleet:
    """Read reports, paths or URLs, and merge their results, which do not depend on where the reports are read.

    `workers` is the number of processes on this machine (default: one per CPU). `scheduler` is the address of a Dask
    scheduler to use instead; its answers are unpickled, so only use a trusted one. A rank is a
    straggler if its own time exceeds the others' by `margin`, a fraction. `max_shown` limits the arrivals at
    collectives in the result's timeline.

    The result names unreadable reports as skipped. Raises ReportError if no report can be read, and RequestError if
    the cluster fails.
    """
    step = progress or (lambda _step, _done: None)
    files, job = report_names(reports), job or Job()
    job = replace(job, nsys=job.nsys or CHOSEN.get(), max_decoded=job.max_decoded or MAX_DECODED.get())
    with _opened_workers(reports, job, workers, scheduler) as (opened, kept):
        headers, skipped = _collect(files, kept, opened, step)
        if not headers:
            first = skipped[min(skipped)]
            count = len(skipped) - 1
            more = f" ({count} more report{'s' * (count != 1)} cannot be read either)" if count else ""
            raise ReportError(f"{first.file}: {first.reason}{more}")
        step("merge", 0.9)
        order = sorted(headers)
        return merge_reports(
            [files[index] for index in order],
            FleetReports(
                [headers[index] for index in order], [kept[index] for index in order], partial(measure_reports, opened)
            ),
            [skipped[index] for index in sorted(skipped)],
            margin=margin,
            max_shown=max_shown,
        )


@contextmanager
def _opened_workers(
    reports: Sequence[Path | str], job: Job, workers: int | None, scheduler: str | None
) -> Iterator[tuple[Workers, list[Report]]]:
    """Yield the open workers and the reports. The end of the block removes the results of the reports."""
    paths = [report if isinstance(report, str) else report.absolute() for report in reports]
    if scheduler is not None:
        run = token_hex()
        with DaskWorkers(scheduler) as cluster:
            try:
                yield (
                    cluster,
                    [
                        Report(str(path), job, i, run=run, exists=isinstance(path, Path) and path.exists())
                        for i, path in enumerate(paths)
                    ],
                )
            finally:
                cluster.in_each(forget_run, run)
        return
    count = min(workers or available_cpus(), len(paths))
    with (
        TemporaryDirectory(prefix="traceview-fleet-") as folder,
        Processes(count, "traceview.ranks.measure_report", threads=1, died=DIED) as processes,
    ):
        yield processes, [Report(str(path), job, index, Path(folder)) for index, path in enumerate(paths)]


def _collect(
    files: Sequence[str], kept: list[Report], workers: Workers, step: Progress
) -> tuple[dict[int, ReportResult], dict[int, Skipped]]:
    """Return the headers of the results and the skipped reports, by index; name the workers that keep the results."""
    headers: dict[int, ReportResult] = {}
    skipped: dict[int, Skipped] = {}
    shared = SharedColumns()
    step(f"read 0 of {len(files)}", 0.0)
    for index, future in workers.as_completed(read_and_keep, kept):
        try:
            header, worker = workers.result(future)
        except WorkerDiedError as error:
            header, worker = str(error), None
        if isinstance(header, str):
            skipped[index] = Skipped(files[index], header)
        else:
            headers[index] = shared.header(header)
            kept[index] = replace(kept[index], worker=worker)
        done = len(headers) + len(skipped)
        step(
            f"read {done:,} of {len(files):,}" + (f", {len(skipped):,} skipped" if skipped else ""),
            0.9 * done / len(files),
        )
    return headers, skipped


def measure_reports(workers: Workers, work: Work[P], kept: Sequence[tuple[int, Report]]) -> P:
    """Measure kept results, each with the index of its first rank, and merge the partial measures as they come.

    Raises RequestError if a worker dies.
    """
    are_here = all(report.folder for _, report in kept)
    if are_here and (len(workers.slots()) == 1 or len(kept) <= MAX_MEASURED_HERE):
        return work(loaded(kept))
    total: P | None = None
    for _, future in workers.as_completed(partial(measure_kept, work), _leaves(kept), _worker_of):
        try:
            part = workers.result(future)
        except WorkerDiedError as error:
            raise RequestError(f"the results cannot be merged: {error}") from None
        total = part if total is None else total.merged(part)
    assert total is not None
    return total


def _leaves(kept: Sequence[tuple[int, Report]]) -> list[Leaf]:
    """Return the results in groups of REPORTS_PER_LEAF at most that one worker has."""
    by_worker: dict[str | None, Leaf] = {}
    for first, report in kept:
        by_worker.setdefault(report.worker, []).append((first, report))
    return [
        some[start : start + REPORTS_PER_LEAF]
        for some in by_worker.values()
        for start in range(0, len(some), REPORTS_PER_LEAF)
    ]


def _worker_of(leaf: Leaf) -> str | None:
    return leaf[0][1].worker


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


def find_fleet(arguments: Sequence[str]) -> tuple[Path | str, ...]:
    """Return what find_reports does, and the URLs of the reports that URLs name. Raises NotFoundError, RequestError."""
    paths = [argument for argument in arguments if not is_url(argument)]
    urls = [url for argument in arguments if is_url(argument) for url in find_remote(argument, (*SQLITE, REPORT))]
    return (*(find_reports(paths) if paths else ()), *sorted(set(urls), key=_natural_order))


def find_reports(arguments: Sequence[str]) -> tuple[Path, ...]:
    """Return each report once, in the order of the numbers in its name. Raises NotFoundError if an argument has none.

    Folders and patterns leave out a .nsys-rep whose .sqlite export is in the same folder. If a folder has a report of
    nsys, its traces of torch.profiler are left out. Traces are sorted by rank if each has a different rank.

    Raises RequestError if such a folder has several traces of a rank, or nothing is named.
    """
    if not arguments:
        raise RequestError("no report is named; name .sqlite files, a folder or a pattern")
    reports: dict[str, Path] = {}
    for argument in arguments:
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
    if _is_folder(path) and parquet.table_suffix(path) is None:
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
    if _is_folder(path):
        return parquet.table_suffix(path) is not None
    return path.name.endswith((*SQLITE, REPORT))


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


def _natural_order(path: Path | str) -> list[tuple[int, str]]:
    parts = NUMBER.split(path if isinstance(path, str) else str(path.absolute()))
    return [(int(part), part) if part.isdigit() and len(part) < 19 else (-1, part) for part in parts]


def report_names(reports: Sequence[Path | str]) -> tuple[str, ...]:
    """Return each report's file name, or its path below the common folder if file names repeat.

    Names of traces that do not contain their rank begin with it.
    """
    absolute = [path_of(report) if isinstance(report, str) else report.absolute() for report in reports]
    names = [path.name for path in absolute]
    if len(set(names)) == len(names):
        ranks = {path: rank for rank, path in rank_traces([path for path in reports if isinstance(path, Path)]).items()}
        unnamed = ranks and not all(RANK_IN_NAME.search(name) for name in names)
        return tuple(
            f"rank {ranks[report]} · {name}" if unnamed and isinstance(report, Path) and report in ranks else name
            for report, name in zip(reports, names, strict=True)
        )
    common = os.path.commonpath([path.parent for path in absolute])
    return tuple(str(path.relative_to(common)) for path in absolute)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
