"""Bounds of request parameters, and malformed request lines."""

from __future__ import annotations

import itertools
import json
import socket
import struct

import pytest

from tests.serve.test_server import get
from traceview.serve import page
from traceview.serve.page import MAX_NS, Server

REQUESTS = {
    "marks": {"from": "0", "to": "1000", "shift": "4", "rows": "0"},
    "measure": {"from": "0", "to": "1000"},
    "find": {"text": "memcpy", "at": "0"},
    "partner": {"row": "0", "correlation": "1"},
}
PARAMETERS = [(path, name) for path, query in REQUESTS.items() for name in query]
# One more than the largest accepted value.
LARGE = {"shift": "53", "correlation": str(1 << 63), "rows": "1000", "row": "1000", "text": "x" * 401}
WRONG = ["24000000000", "9" * 30, "9" * 5000, "-9" * 20, "NaN", "Infinity", "1e9", "1.5", "0x10", "1_0"]
WRONG += ["+1", "٣", "", "%00"]


def address(path: str, query: dict[str, str]) -> str:
    return f"{path}?" + "&".join(f"{name}={value}" for name, value in query.items())


def refused(server: Server, path: str) -> str:
    status, headers, body = get(server, path)
    assert status == 400 and headers["Content-Type"] == "text/plain", path[:80]
    assert body.count(b"\n") == 1 and len(body) < 200 and b"Traceback" not in body
    return body.decode()


@pytest.mark.parametrize(("path", "name"), PARAMETERS)
def test_each_parameter_is_required_once(server: Server, path: str, name: str) -> None:
    query = REQUESTS[path]
    assert get(server, address(path, query))[0] == 200
    assert refused(server, address(path, {key: query[key] for key in query if key != name})) == f"{name}: is missing\n"
    assert refused(server, f"{address(path, query)}&{name}={query[name]}") == "a parameter is given twice\n"


@pytest.mark.parametrize(("path", "name"), PARAMETERS)
def test_large_value_is_refused(server: Server, path: str, name: str) -> None:
    value = LARGE.get(name, str(MAX_NS + 1))
    assert name in refused(server, address(path, {**REQUESTS[path], name: value}))


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, name in PARAMETERS if name != "text"])
def test_value_that_is_not_an_integer_is_refused(server: Server, path: str, name: str) -> None:
    accepted = {"24000000000"} if name in ("from", "to", "at", "correlation") else set()
    for value in WRONG:
        if value not in accepted:
            quoted = value.replace("+", "%2B").replace("٣", "%D9%A3")
            assert name in refused(server, address(path, {**REQUESTS[path], name: quoted}))


def test_too_many_parameters_are_refused(server: Server) -> None:
    assert "more than 20" in refused(server, "measure?" + "&".join(f"a{at}=1" for at in range(30)))


def test_repeated_and_too_many_rows_are_refused(server: Server) -> None:
    assert "twice" in refused(server, "marks?from=0&to=1&shift=0&rows=0,0")
    assert "at most 1000 rows" in refused(server, "marks?from=0&to=1&shift=0&rows=" + ",".join(["0"] * 5000))


def test_extreme_times_are_answered(server: Server) -> None:
    for start, end in itertools.product((-MAX_NS, 0, MAX_NS), repeat=2):
        assert get(server, f"measure?from={start}&to={end}")[0] == 200
        assert get(server, f"marks?from={start}&to={end}&shift=52&rows=1")[0] == 200


def test_narrow_bins_are_widened(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_LANE_MARKS", 100)
    monkeypatch.setattr(page, "MAX_LANE_BINS", 64)
    stream = next(at for at, row in enumerate(server.answers.rows) if row.kind == "stream")
    body = get(server, f"marks?from=0&to={1 << 30}&shift=0&rows={stream}")[2]
    [length] = struct.unpack("<I", body[:4])
    [lane] = json.loads(body[4 : 4 + length])["rows"][str(stream)]
    assert lane["bin"] == 1 << 25 and 0 < lane["marks"]["n"] <= 100


def test_size_of_an_answer_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_ANSWER_MARKS", 1000)
    rows = ",".join(map(str, range(len(server.answers.rows))))
    assert "request fewer rows" in refused(server, f"marks?from=0&to={1 << 33}&shift=0&rows={rows}")


LINES = [
    b"GET http://[ HTTP/1.1",
    b"GET http://[::1 HTTP/1.1",
    b"GET //[ HTTP/1.1",
    b"GET",
    b"GET /",
    b"GET  HTTP/1.1",
    b"GET / HTTP/9.9",
    b"GET / HTTP/1.x",
    b"GET / HTTP/1.1 x",
    b"\xff\xfe\x00 / HTTP/1.1",
    b"GET /\xff\x80\x00 HTTP/1.1",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
    b"POST / HTTP/1.1",
    b"GET * HTTP/1.1",
    b"GET /?\xed\xa0\x80=1&&&=;% HTTP/1.1",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:20]))
def test_malformed_request_line_is_answered(server: Server, line: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    for host in (b"Host: [\r\n", f"Host: 127.0.0.1:{server.server_port}\r\n".encode(), b""):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=300) as client:
            client.sendall(line + b"\r\n" + host + b"\r\n")
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert b"Traceback" not in answer
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"<!DOCTYPE", b"not found")) or b" 404 " in answer
    assert capfd.readouterr().err == ""
    assert get(server, "")[0] == 200
