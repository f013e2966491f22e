"""The server: access control, and exact answers."""

from __future__ import annotations

import http.client
import json
import struct
from typing import Any

import numpy as np
import pytest

from tests.pages import inputs_of
from tests.timeline.test_columns import planes
from traceview import intervals
from traceview.errors import OutputError
from traceview.model.analysis import Analysis
from traceview.serve.page import Server


def get(
    server: Server, path: str, *, token: str | None = None, host: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    used_token = server.token if token is None else token
    try:
        connection.request("GET", f"/{used_token}/{path}", headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def answer_of(server: Server, path: str) -> Any:
    status, _, body = get(server, path)
    assert status == 200, body
    return json.loads(body)


def test_only_loopback_and_only_with_the_token(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32
    assert get(server, "")[0] == 200
    assert (
        get(server, "", token="")[0]
        == get(server, "", token="x" * 32)[0]
        == get(server, "", token="é".encode().hex())[0]
        == 404
    )
    assert get(server, "measure?from=0&to=1", token="wrong")[0] == 404


def test_another_host_name_is_refused(server: Server) -> None:
    assert get(server, "", host=f"localhost:{server.server_port}")[0] == 200
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1"):
        assert get(server, "", host=host)[0] == 404


def test_security_headers(server: Server) -> None:
    _, headers, body = get(server, "")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert "connect-src 'self'" in body.decode()
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    "path",
    ["measure", "measure?from=a&to=1", "measure?from=0", f"measure?from=0&to={1 << 80}", "find?text=a&at=x",
     "marks?from=0&to=1&shift=0&rows=999", "marks?from=0&to=1&shift=0&rows=-1", "marks?from=0&to=1&shift=0",
     "partner?row=0&correlation=", "partner?row=../x&correlation=1"],
)  # fmt: skip
def test_invalid_query_is_a_one_line_error(server: Server, path: str) -> None:
    status, headers, body = get(server, path)
    assert status == 400 and headers["Content-Type"] == "text/plain"
    assert body.count(b"\n") == 1 and b"Traceback" not in body


@pytest.mark.parametrize("path", ["x", "../", "..%2f", "page.html", "marks/", "etc/passwd"])
def test_other_paths_are_not_found(server: Server, path: str) -> None:
    assert get(server, path)[0] == 404


def test_marks_contain_every_event(server: Server, analysis: Analysis) -> None:
    zero = analysis.trace.span.start
    rows = server.answers.rows
    number = next(at for at, row in enumerate(rows) if row.kind == "stream")
    start, end = 300_000_000, 340_000_000
    status, _, body = get(server, f"marks?from={start}&to={end}&shift=10&rows={number}")
    assert status == 200
    [length] = struct.unpack("<I", body[:4])
    header = json.loads(body[4 : 4 + length])
    [lane] = header["rows"][str(number)]
    assert lane["bin"] == 0
    stream = int(rows[number].id[2:])
    frame = analysis.trace.operations
    frame = frame.filter((frame["stream"] == stream) & (frame["end"] >= start + zero) & (frame["start"] <= end + zero))
    places = lane["marks"]
    assert places["n"] == len(frame) > 100
    starts = np.cumsum(planes(body[4 + length :], places["start"], places["n"]))
    assert starts.tolist() == (frame["start"] - zero).to_list()
    lengths = planes(body[4 + length :], places["length"], places["n"])
    assert lengths == (frame["end"] - frame["start"]).to_list()


@pytest.mark.parametrize("stretch", [(0, 10**9), (123_456_789, 234_567_891), (500, 501)])
def test_measure_is_exact(server: Server, analysis: Analysis, stretch: tuple[int, int]) -> None:
    zero = analysis.trace.span.start
    first, last = stretch[0] + zero, stretch[1] + zero
    [device] = answer_of(server, f"measure?from={stretch[0]}&to={stretch[1]}")["devices"]
    frame = analysis.trace.operations

    def union(kind: str) -> intervals.Intervals:
        chosen = frame.filter(frame["class"] == kind)
        return intervals.clip(intervals.union(chosen["start"].to_numpy(), chosen["end"].to_numpy()), first, last)

    compute, copies = union("compute"), union("copy")
    assert device["compute"] == intervals.length(compute)
    assert device["copies"] == intervals.length(copies)
    assert device["hidden"] == intervals.overlap_length(compute, copies)
    busy = intervals.union(frame["start"].to_numpy(), frame["end"].to_numpy())
    window = analysis.devices[0].window
    low, high = max(first, window.start), min(last, window.end)
    assert device["idle"] == max(0, high - low) - intervals.length(intervals.clip(busy, low, max(low, high)))
    begun = frame.filter((frame["start"] >= first) & (frame["start"] < last))
    assert device["kernels"] == (begun["class"] == "compute").sum()
    assert device["copy_count"] == (begun["class"] == "copy").sum()


def test_find_counts_every_match(server: Server, analysis: Analysis) -> None:
    matches = answer_of(server, "find?text=MEMCPY&at=0")
    names = analysis.trace.operations["name"].cast(str)
    api = analysis.trace.api["name"].cast(str)
    expected = sum(column.str.to_lowercase().str.contains("memcpy").sum() for column in (names, api))
    assert matches["total"] == expected
    starts = [place[1] for place in matches["places"]]
    assert starts == sorted(starts) and len(starts) == min(expected, 4096)
    for text in ("", "nothing+like+it"):
        assert answer_of(server, f"find?text={text}&at=0")["total"] == 0


def test_port_in_use(server: Server, analysis: Analysis) -> None:
    with pytest.raises(OutputError, match="cannot listen on port"):
        Server(inputs_of(analysis), server.server_port)
