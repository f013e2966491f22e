"""The HTTP server: it listens on the loopback address and answers requests that carry the token."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from traceview.errors import OutputError, RequestError
from traceview.report.analysis.page import live
from traceview.serve.answers import Answers, Query, parse_query
from traceview.timeline.events import PageInputs

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
