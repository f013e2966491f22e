"""Documents of `traceview analyze --json`, read for a comparison.

A document comes from anywhere: its size and each value that is read are checked. Other keys may be anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from traceview.errors import NotFoundError, ReportError
from traceview.model.analysis import Analysis, Iteration, IterationKind, Iterations, NotMeasured, Spread
from traceview.model.findings import Gain
from traceview.model.frozen import dataclass
from traceview.model.trace import Note, ReportInfo, Window
from traceview.model.unprofiled import ESTIMATE, UnprofiledTime
from traceview.read.source import display_name
from traceview.report.json import SCHEMA_VERSION

MAX_BYTES = 64_000_000  # 100,000 iterations take about 50 MB
MAX_TEXT = 32_768  # characters; a longer text is cut, as a name of a capture is
MAX_VALUE = 1 << 61  # a time in ns since 1970 stays below it until the year 2043
MAX_LENGTH = 1 << 52  # ns of a capture: 52 days
AGAIN = "write it again with `traceview analyze REPORT --json`"


@dataclass(frozen=True, slots=True)
class DocumentKernel:
    """A row of the table `kernels`; one row stands for all kernels beyond the costliest."""

    name: str
    label: str
    count: int
    total_ns: int
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class DocumentSums:
    """The sums of a device in its steady part, in ns."""

    window_ns: tuple[int, ...]
    compute_ns: int
    exposed_h2d_ns: int
    exposed_d2h_ns: int
    exposed_communication_ns: int
    causes: Mapping[str, int]
    kernels: tuple[DocumentKernel, ...]
    copies: tuple[DocumentCopies, ...] = ()
    communication: DocumentCommunication | None = None
    collectives: tuple[DocumentCollective, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentCopies:
    """The copies of a kind: "h2d", "d2h" and others."""

    kind: str
    exposed_ns: int
    busy_ns: int = 0
    exposed_causes: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class DocumentCommunication:
    """The communication of a device."""

    exposed_ns: int
    busy_ns: int = 0
    exposed_causes: Mapping[str, int] | None = None
    contention_ns: int | None = None


@dataclass(frozen=True, slots=True)
class DocumentCollective:
    """A row of the table `collectives`."""

    collective: str
    busy_ns: int = 0


@dataclass(frozen=True, slots=True)
class DocumentGaps:
    """The idle time of a device by cause, in ns."""

    causes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DocumentDevice:
    """A device, its sums in its window, and those in its steady part."""

    id: str
    name: str
    process_ids: tuple[int, ...]
    window_ns: tuple[int, ...]
    compute_ns: int
    copies: tuple[DocumentCopies, ...]
    communication: DocumentCommunication
    gaps: DocumentGaps
    kernels: tuple[DocumentKernel, ...]
    steady: DocumentSums
    collectives: tuple[DocumentCollective, ...] = ()

    @property
    def window(self) -> Window:
        """The time from its first to its last work."""
        return Window(*self.window_ns)


@dataclass(frozen=True, slots=True)
class DocumentFinding:
    """The change that a finding names, its remedy in words, and what it gains."""

    change: str = ""
    remedy: str = ""
    gain: Gain | None = None
    others: tuple[DocumentFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Unprofiled:
    mean: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Iterations:
    """The object `iterations`. Without iterations, `source` is "none" and most keys are missing."""

    range: str | None
    source: str
    confidence: float
    time_ns: int | None
    count: int
    skipped: int
    per_iteration: tuple[Iteration, ...]
    process_id: int = 0
    unprofiled_ns: _Unprofiled | None = None
    unprofiled_source: str | None = None
    kinds: tuple[IterationKind, ...] = ()
    not_measured: str = "the document has no iterations"


@dataclass(frozen=True, slots=True)
class _Report:
    nsys_version: str | None
    profiler: str


@dataclass(frozen=True, slots=True)
class _Contents:
    """The keys of a document that a comparison reads."""

    report: _Report
    devices: tuple[DocumentDevice, ...]
    iterations: _Iterations
    findings: tuple[DocumentFinding, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class AnalysisDocument:
    """What a comparison reads of a document; `info`, `devices` and `iterations` are those of the Analysis in it."""

    info: ReportInfo
    devices: tuple[DocumentDevice, ...]
    iterations: Iterations | NotMeasured
    findings: tuple[DocumentFinding, ...]


Analyzed = Analysis | AnalysisDocument  # what a comparison takes


def read_document(path: Path) -> AnalysisDocument:
    """Read a document of `traceview analyze --json`. Raises ReportError, which names the key that is wrong."""
    name = display_name(path)
    try:
        document = _loaded(path)
        _check_kind(document)
        contents: _Contents = _parsed(_Contents, document, "")
        return _document(path, contents)
    except FileNotFoundError:
        raise NotFoundError(f"{name}: no such file") from None
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
    except RecursionError:
        raise ReportError(f"{name}: is nested too deeply; {AGAIN}") from None
    except _DocumentError as error:
        raise ReportError(f"{name}: {error}") from None
    except ValueError:  # json raises it, also for a text that is not UTF-8
        raise ReportError(f"{name}: is damaged (no valid JSON); {AGAIN}") from None


class _DocumentError(ValueError):
    """What is wrong with a document, with its remedy."""


def _refuse(text: str) -> NoReturn:
    raise _DocumentError(text)


def _loaded(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        _refuse(f"has more than {MAX_BYTES // 1_000_000} MB, which no document of analyze has; name the report")
    document = json.loads(data.decode("utf-8"), parse_constant=lambda _: _refuse(f"has NaN or Infinity; {AGAIN}"))
    if not isinstance(document, dict):
        _refuse(f"is not a document of `traceview analyze`; {AGAIN}")
    return document


def _check_kind(document: Mapping[str, Any]) -> None:
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        known = f"this version of traceview reads {SCHEMA_VERSION}"
        _refuse(f"has schema_version {str(version)[:20]}, and {known}; {AGAIN}")
    if not {"report", "devices", "iterations"} <= document.keys():
        _refuse(f"is a document of another command than analyze; {AGAIN}")


def _parsed(kind: Any, value: Any, where: str) -> Any:
    """Return a plain value as a value of a type. Raises _DocumentError, which names the key."""
    if is_dataclass(kind):
        return _parsed_fields(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else _parsed(arguments[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_parsed(arguments[0], inner, f"{where}[{index}]") for index, inner in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {str(key)[:MAX_TEXT]: _parsed(arguments[1], inner, f"{where}.{key}") for key, inner in value.items()}
    if kind is str and isinstance(value, str):
        return value[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8")  # half of a surrogate pair becomes "?"
    if kind is int and type(value) is int and -MAX_VALUE <= value <= MAX_VALUE:
        return value
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is bool and isinstance(value, bool):
        return value
    return _refuse(f"{where[1:201]} has an impossible value; {AGAIN}")


def _parsed_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        _refuse(f"{where[1:201]} is not an object; {AGAIN}")
    given = {}
    for field in fields(kind):
        if field.name in value:
            given[field.name] = _parsed(_hints(kind)[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is MISSING:
            _refuse(f"{f'{where}.{field.name}'[1:201]} is missing; {AGAIN}")
    return kind(**given)


_hints = cache(get_type_hints)


def _document(path: Path, contents: _Contents) -> AnalysisDocument:
    _check_devices(contents.devices)
    report, iterations = contents.report, _iterations(contents.iterations, len(contents.devices))
    left_out = tuple(note for note in contents.notes if note.id == "left_out")
    info = ReportInfo(path.name, report.nsys_version, None, {}, left_out, report.profiler)
    return AnalysisDocument(info, contents.devices, iterations, contents.findings)


def _check_devices(devices: Sequence[DocumentDevice]) -> None:
    values: list[int] = []
    for device in devices:
        steady = device.steady
        for window in (device.window_ns, steady.window_ns):
            if len(window) != 2 or not 0 <= window[1] - window[0] <= MAX_LENGTH:
                _refuse(f"has a device whose window_ns ends before it starts; {AGAIN}")
        values += [
            device.compute_ns,
            steady.compute_ns,
            steady.exposed_h2d_ns,
            steady.exposed_d2h_ns,
            steady.exposed_communication_ns,
        ]
        values += [*device.gaps.causes.values(), *steady.causes.values()]
        for each in (device, steady):
            talk = (each.communication,) if each.communication else ()
            for row in (*each.copies, *talk):
                values += [row.exposed_ns, row.busy_ns, *(row.exposed_causes or {}).values()]
            values += [row.busy_ns for row in each.collectives]
        values += [value for row in (*device.kernels, *steady.kernels) for value in (row.count, row.total_ns)]
    if min(values, default=0) < 0 or sum(values) > MAX_VALUE:
        _refuse(f"has a device with an impossible time or count; {AGAIN}")


def _iterations(given: _Iterations, devices: int) -> Iterations | NotMeasured:
    rows = given.per_iteration
    if given.source == "none":
        return NotMeasured(given.not_measured)
    if given.count != len(rows) or not 0 <= given.skipped < len(rows) or given.time_ns is None:
        _refuse(f"iterations.count, skipped or time_ns contradict iterations.per_iteration; {AGAIN}")
    time = given.unprofiled_ns
    source = given.unprofiled_source or "estimate"
    _check_rows(rows, devices)
    if not 0 <= given.time_ns <= MAX_LENGTH:
        _refuse(f"iterations.time_ns has an impossible value; {AGAIN}")
    return Iterations(
        range=given.range or "",
        source=given.source,
        confidence=given.confidence,
        time_ns=given.time_ns,
        steady=Window(rows[given.skipped].start_ns, max(row.end_ns for row in rows)),
        candidates=(),
        thread=0,
        process_id=given.process_id,
        count=given.count,
        skipped=given.skipped,
        skipped_why="",
        wall_ns=Spread(0, 0, 0),
        spreads={},
        per_iteration=rows,
        unprofiled=None if time is None else UnprofiledTime(time.mean, time.low, time.high, source, ESTIMATE),
        kinds=given.kinds,
    )


def _check_rows(rows: tuple[Iteration, ...], devices: int) -> None:
    """Refuse iterations that are out of order, longer than a capture, or shorter than what they contain."""
    ends = [row.gpu_end_ns for row in rows]
    known = [end for end in ends if end is not None]
    starts = [row.start_ns for row in rows]
    reach = max([row.end_ns for row in rows] + known) - starts[0]
    walls = [row.end_ns - row.start_ns for row in rows]
    is_ordered = min(walls) >= 0 and starts == sorted(starts) and known == sorted(known)
    too_long = reach > MAX_LENGTH or sum(walls) * devices > MAX_VALUE
    if not is_ordered or (known and known[0] < starts[0]) or too_long:
        _refuse(f"iterations.per_iteration is not in order of time; {AGAIN}")
    for index, row in enumerate(rows):
        times = (row.compute_ns, row.exposed_h2d_ns, row.exposed_d2h_ns, row.exposed_communication_ns)
        if not all(0 <= ns <= devices * (row.end_ns - row.start_ns) for ns in (*times, *row.idle.values())):
            _refuse(f"iterations.per_iteration[{index}] has a part that is longer than it; {AGAIN}")


def with_unprofiled(document: AnalysisDocument, given_ns: int) -> AnalysisDocument:
    """Return the document with a time of an iteration that was measured without the profiler."""
    if isinstance(document.iterations, NotMeasured):
        return document
    time = UnprofiledTime(given_ns, given_ns, given_ns, "given", ESTIMATE)
    return replace(document, iterations=replace(document.iterations, unprofiled=time))
