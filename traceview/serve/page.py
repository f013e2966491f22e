"""The HTTP server of a page: it listens on the loopback address and answers requests that carry the token.

Answers are computed from every mark of the timeline; each request parameter has bounds. Sums of the capture in bins are
made in advance: a measurement reads only the marks at its ends.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from traceview.errors import OutputError, RequestError
from traceview.intervals import EMPTY, Times
from traceview.model.analysis import CAUSES
from traceview.model.timeline.events import PageInputs, TimelineEvents
from traceview.model.timeline.levels import Lane, merged_lanes
from traceview.model.timeline.marks import MAX_NAME_LENGTH, Columns, Marks
from traceview.model.timeline.merging import merged
from traceview.model.timeline.rows import SEARCHED, Group, TimelineRow
from traceview.model.timeline.stored import StoredMarks
from traceview.model.timeline.sums import (
    DeviceLanes,
    NameSums,
    StoredSums,
    added,
    bin_edges,
    bin_shift,
    device_lanes,
    device_sums,
    row_sums,
    sums_of_devices,
    sums_of_names,
)
from traceview.model.trace import Window
from traceview.report.analysis.page import live

MAX_LANE_MARKS = 20_000  # per lane and answer; a lane with more is merged into bins
MAX_LANE_BINS = 1 << 16  # per lane and answer; bins become wider than requested beyond this
MAX_READ_MARKS = 1 << 19  # per lane and answer; a longer time is read from a level
MAX_MERGED_MARKS = 8_000_000  # the finest level in advance; a mark takes about 90 bytes of memory
MAX_UNMERGED_MARKS = 4_000_000  # a capture with more is merged and summed in bins in advance
MAX_SUM_BINS = 1 << 12
MAX_ANSWER_MARKS = 4_000_000  # per answer, about 160 MB
MAX_PLACES = 4096  # per search: the places nearest to the page's view
MAX_NAMES = 500  # per row and measurement: those with the most time
MAX_PARTNERS = 4096  # per call
MAX_PARAMETERS = 20
MAX_NS = (1 << 53) - 1  # the largest integer that JavaScript holds exactly; the page counts in it
MAX_CORRELATION = (1 << 63) - 1
MAX_SHIFT = 52
MAX_ROWS = 1000
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")

Json = dict[str, Any]
Query = Mapping[str, str]


@dataclass(frozen=True)
class Answers:
    """Every row of the timeline, in the page's order. Requests and answers count times from `zero`."""

    groups: Sequence[Group]
    rows: Sequence[TimelineRow]
    lanes: Sequence[Sequence[Lane]]
    devices: Sequence[DeviceLanes]
    sums: BinnedSums
    texts: Sequence[str]
    zero: int

    @classmethod
    def from_groups(cls, groups: Sequence[Group], source: TimelineEvents) -> Answers:
        """Build the answers from the rows of a timeline without copying a mark."""
        zero, length = source.span.start, source.span.length
        rows = [row for group in groups for row in group.rows]
        count = sum(len(lane) for row in rows for lane in row.lanes)
        lanes = _lanes_with_levels(rows, zero, length)
        devices = device_lanes(groups)
        bins = MAX_SUM_BINS if count > MAX_UNMERGED_MARKS else 1
        sums = BinnedSums.from_lanes(groups, devices, source.span, bins, source.sums)
        return cls(groups, rows, lanes, devices, sums, source.names.texts, zero)

    def marks(self, query: Query) -> bytes:
        """Answer `from`, `to`, `shift`, `rows` with the marks of these rows, as a header and packed columns.

        The first four bytes hold the length of the header. The header is JSON: for each row and lane, the bin width
        in ns (0: single events) and the position of its columns in the bytes that follow. Raises RequestError.
        """
        start, end = time_parameter(query, "from"), time_parameter(query, "to")
        shift = max(whole_number(query, "shift", 0, MAX_SHIFT), (max(0, end - start) // MAX_LANE_BINS).bit_length())
        columns, rows, total = Columns(), {}, 0
        for number in row_numbers(query, "rows", len(self.rows)):
            lanes = []
            for lane in self.lanes[number]:
                marks, width = self._lane_marks(lane, start, end, shift)
                total += len(marks)
                if total > MAX_ANSWER_MARKS:
                    raise RequestError(f"rows: more than {MAX_ANSWER_MARKS} marks; request fewer rows")
                lanes.append({"bin": width, "marks": marks.write(columns, self.zero)})
            rows[number] = lanes
        header = json.dumps({"from": start, "to": end, "rows": rows}).encode()
        return len(header).to_bytes(4, "little") + header + columns.raw()

    def _lane_marks(self, lane: Lane, start: int, end: int, shift: int) -> tuple[Marks, int]:
        """Return a lane's marks between two times and their bin width in ns, 0 for single events.

        Bins at the ends may count events outside of the two times.
        """
        start, end = start + self.zero, end + self.zero
        level = lane.marks if lane.marks.count_near(start, end) <= MAX_READ_MARKS else lane.at_most(shift)
        marks = level.between(start, end)
        if level is lane.marks and len(marks) <= MAX_LANE_MARKS:
            return marks, 0
        return merged(marks, self.zero, shift, lane.marks.looks), 1 << shift

    def measure(self, query: Query) -> Json:
        """Answer `from`, `to` with each device's figures between the two times, exact to the nanosecond."""
        start, end = time_parameter(query, "from"), time_parameter(query, "to")
        edges = np.array([start, max(start, end)], np.int64) + self.zero
        devices = []
        for number, device in enumerate(self.devices):
            sums = self.sums.of_device(number, device, edges)
            causes = {cause: sums.pop(cause, 0) for cause in CAUSES}
            devices.append({"id": device.id, **sums, "causes": {cause: ns for cause, ns in causes.items() if ns}})
        return {"from": start, "to": end, "exact": True, "devices": devices, "sums": self._sums(edges)}

    def _sums(self, edges: Times) -> list[Json]:
        """Return the names with the most time of each row, as [name, ns, events that start] between two times."""
        sums = []
        for part in self.sums.by_name(self.groups, edges):
            most = np.argsort(-part.time, kind="stable")[:MAX_NAMES]
            names = np.stack([part.name[most], part.time[most], part.started[most]], axis=1)
            sums.append({"row": part.row, "table": part.table, "names": names.tolist()})
        return sums

    def find(self, query: Query) -> Json:
        """Answer `text`, `at` with the number of events whose name contains `text`, and the places nearest to `at`."""
        needle, at = search_text(query, "text"), time_parameter(query, "at") + self.zero
        fits = np.array([bool(needle) and needle in text.lower() for text in self.texts], np.bool_)
        total, before, places = 0, 0, [np.empty((0, 3), np.int64)]
        for number, row in enumerate(self.rows):
            for lane in row.lanes if row.kind in SEARCHED and fits.any() else ():
                count, earlier, marks = lane.nearest(fits, at, MAX_PLACES)
                total, before = total + count, before + earlier
                places.append(np.stack([np.full(len(marks), number), marks.start, marks.end], axis=1))
        near = np.concatenate(places)
        near = near[np.lexsort((near[:, 2], near[:, 1]))]
        first = max(0, min(before - MAX_PLACES // 2, total - MAX_PLACES))
        chosen = first - before + int(np.searchsorted(near[:, 1], at))
        near = near[chosen : chosen + MAX_PLACES] - np.array([0, self.zero, self.zero])
        return {"total": total, "first": first, "places": near.tolist()}

    def partner(self, query: Query) -> list[Json]:
        """Answer `row`, `correlation` with the call that launched this work, or the work that this call launched."""
        row = self.rows[whole_number(query, "row", 0, len(self.rows) - 1)]
        correlation = whole_number(query, "correlation", -MAX_CORRELATION, MAX_CORRELATION)
        kind = {"stream": "call", "call": "stream"}.get(row.kind)
        partners: list[Json] = []
        for number, other in enumerate(self.rows):
            if other.kind != kind or other.process != row.process or correlation == 0:
                continue
            pieces = (piece for lane in other.lanes for piece in lane.near(EMPTY, np.array([correlation])))
            for piece in pieces:
                matching = _rows_with_correlation(piece, correlation)[: MAX_PARTNERS - len(partners)]
                partners.extend(self._mark_json(number, piece, at) for at in matching.tolist())
        return partners

    def _mark_json(self, row: int, marks: Marks, at: int) -> Json:
        times = {"start": marks.start[at] - self.zero, "end": marks.end[at] - self.zero}
        rest = {"name": marks.name[at], "look": marks.look[at], "correlation": marks.details["correlation"][at]}
        return {"row": row, **{key: int(value) for key, value in {**times, **rest}.items()}}


def _lanes_with_levels(rows: Sequence[TimelineRow], zero: int, length: int) -> list[list[Lane]]:
    """Return the lanes of each row. Many marks in memory get levels; marks in files have levels already."""
    lanes = {row.id: [Lane(marks, True, None, (), marks.looks) for marks in row.lanes] for row in rows}
    in_memory = [row for row in rows if not any(isinstance(lane, StoredMarks) for lane in row.lanes)]
    count = sum(len(lane) for row in in_memory for lane in row.lanes)
    if count > MAX_UNMERGED_MARKS:
        levels = merged_lanes(in_memory, zero, length, min(MAX_MERGED_MARKS, count // 4))
        lanes |= {row.id: own for row, own in zip(in_memory, levels, strict=True)}
    return [lanes[row.id] for row in rows]


def _rows_with_correlation(marks: Marks, correlation: int) -> Times:
    """Return the indices of the marks that have this correlation id."""
    if "correlation" not in marks.details:
        return np.empty(0, np.int64)
    return np.flatnonzero(marks.details["correlation"] == correlation)


def parse_query(text: str) -> Query:
    """Return the parameters of a request by name. Raises RequestError."""
    try:
        parameters = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise RequestError(f"the address has more than {MAX_PARAMETERS} parameters") from None
    query = dict(parameters)
    if len(query) < len(parameters):
        raise RequestError("a parameter is given twice")
    return query


def time_parameter(query: Query, name: str) -> int:
    """Return a time in ns, counted from the page's zero. Raises RequestError."""
    return whole_number(query, name, -MAX_NS, MAX_NS)


def whole_number(query: Query, name: str, minimum: int, maximum: int) -> int:
    """Return an integer between two bounds, inclusive. Raises RequestError."""
    text = _text_of(query, name)
    if not WHOLE_NUMBER.fullmatch(text):
        raise RequestError(f"{name}: must be an integer")
    if not minimum <= int(text) <= maximum:
        raise RequestError(f"{name}: must be between {minimum} and {maximum}")
    return int(text)


def search_text(query: Query, name: str) -> str:
    """Return the text to search for, in lower case. Raises RequestError if it is longer than any name."""
    text = _text_of(query, name)
    if len(text) > MAX_NAME_LENGTH:
        raise RequestError(f"{name}: at most {MAX_NAME_LENGTH} characters")
    return text.strip().lower()


def row_numbers(query: Query, name: str, count: int) -> list[int]:
    """Return distinct row numbers below `count`. Raises RequestError."""
    texts = _text_of(query, name).split(",", MAX_ROWS)
    if len(texts) > MAX_ROWS:
        raise RequestError(f"{name}: at most {MAX_ROWS} rows")
    numbers = [whole_number({name: text}, name, 0, count - 1) for text in texts]
    if len(set(numbers)) < len(numbers):
        raise RequestError(f"{name}: a row is given twice")
    return numbers


def _text_of(query: Query, name: str) -> str:
    """Return a parameter's text. Raises RequestError if it is absent."""
    if name not in query:
        raise RequestError(f"{name}: is missing")
    return query[name]


@dataclass(frozen=True, slots=True)
class BinnedSums:
    """The sums of each device up to each of the ascending `edges`, and those of names in each bin of `name_edges`."""

    edges: Times
    before: Sequence[dict[str, Times]]
    name_edges: Times
    names: Sequence[NameSums]

    @classmethod
    def from_lanes(
        cls,
        groups: Sequence[Group],
        devices: Sequence[DeviceLanes],
        span: Window,
        bins: int,
        stored: StoredSums | None = None,
    ) -> BinnedSums:
        """Return the sums in at most about `bins` bins; without sums for one bin. `stored` has those of files."""
        if bins < 2:
            return cls(np.array([span.start]), [], np.array([span.start]), [])
        shift = bin_shift(span.length, bins)
        device_shift, sums = sums_of_devices(devices, span, 0 if stored else shift, stored)
        before = [{name: np.append(0, np.cumsum(own)) for name, own in sums[device.id].items()} for device in devices]
        name_shift, names = sums_of_names(groups, span, shift, stored)
        return cls(bin_edges(span, device_shift), before, bin_edges(span, name_shift), names)

    def of_device(self, number: int, device: DeviceLanes, edges: Times) -> dict[str, int]:
        """Return the sums of a device between two times."""
        first, last, rest = _split(self.edges, edges)
        parts = [device_sums(device, part) for part in rest]
        sums = {name: sum(int(part[name][0]) for part in parts) for name in parts[0]}
        for name, before in self.before[number].items() if last > first else ():
            sums[name] = sums.get(name, 0) + int(before[last] - before[first])
        return sums

    def by_name(self, groups: Sequence[Group], edges: Times) -> Iterator[NameSums]:
        """Yield the sums of every row between two times, as those of bin 0."""
        first, last, rest = _split(self.name_edges, edges)
        parts: dict[tuple[str, str], list[NameSums]] = {}
        for edge in rest:
            for part in row_sums(groups, edge):
                parts.setdefault((part.row, part.table), []).append(part)
        for sums in self.names if last > first else ():
            inside = slice(*np.searchsorted(sums.bin, (first, last)))
            columns = (sums.name[inside], sums.time[inside], sums.started[inside])
            part = NameSums(sums.row, sums.table, np.zeros(len(columns[0]), np.int64), *columns)
            parts.setdefault((part.row, part.table), []).append(part.combined())
        yield from map(added, parts.values())


def _split(bins: Times, edges: Times) -> tuple[int, int, list[Times]]:
    """Return the first and the last border of bins inside two times, and the times around them that no bin covers."""
    first, last = int(np.searchsorted(bins, edges[0])), int(np.searchsorted(bins, edges[1], "right")) - 1
    if last <= first:
        return 0, 0, [edges]
    inner = bins[[first, last]]
    return first, last, [np.array([edges[0], inner[0]]), np.array([inner[1], edges[1]])]


LOOPBACK = "127.0.0.1"
HTML, JSON, BYTES, TEXT = "text/html; charset=utf-8", "application/json", "application/octet-stream", "text/plain"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """Serves the page of one analysis and the answers to its requests on a loopback port, behind a random token."""

    daemon_threads = True

    def __init__(self, inputs: PageInputs, port: int = 0) -> None:
        """Build the page and listen on the port (0: any free port). Raises OutputError if the port is taken."""
        document, groups = live(inputs)
        self.document = document.encode("utf-8")
        self.answers = Answers.from_groups(groups, inputs.events)
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "no such port"
            raise OutputError(f"cannot listen on port {port} ({reason}); choose another with --port") from None

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """The Host headers to accept; another name is a DNS rebinding attempt."""
        return (f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}")

    def handle_error(self, request: object, client_address: object) -> None:
        """Report a failed request in one line; ignore a client that disconnected."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            sys.stderr.write(f"traceview: request failed: {type(error).__name__}\n")

    def answer(self, path: str, query: Query) -> tuple[str, bytes] | None:
        """Return content type and body of the resource at a path behind the token; None if there is none.

        Raises RequestError if a parameter is missing or out of bounds.
        """
        if path == "":
            return HTML, self.document
        if path == "marks":
            return BYTES, self.answers.marks(query)
        answers: dict[str, Callable[[Query], Any]] = {
            "measure": self.answers.measure,
            "find": self.answers.find,
            "partner": self.answers.partner,
        }
        return (JSON, json.dumps(answers[path](query)).encode()) if path in answers else None


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "traceview"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError:
            return self._send(HTTPStatus.BAD_REQUEST, TEXT, b"invalid address\n")
        _, _, rest = parts.path.partition("/")
        token, slash, path = rest.partition("/")
        authorized = secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
        if self.headers.get("Host") not in self.server.hosts or not authorized or not slash:
            return self._send(HTTPStatus.NOT_FOUND, TEXT, b"not found\n")
        try:
            answer = self.server.answer(path, parse_query(parts.query))
        except RequestError as error:
            return self._send(HTTPStatus.BAD_REQUEST, TEXT, f"{error}\n".encode("utf-8", "replace"))
        if answer is None:
            return self._send(HTTPStatus.NOT_FOUND, TEXT, b"not found\n")
        return self._send(HTTPStatus.OK, *answer)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page cancelled this request

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the address contains the token."""
