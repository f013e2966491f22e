"""Who may ask, and where an answer comes from: this machine alone, and only who knows the token."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from traceview.errors import OutputError, RequestError
from traceview.model import Analysis
from traceview.report.html.page import live
from traceview.serve.answers import Answers

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
    """The page of one analysis and the answers that it needs, on a loopback port, behind a random token."""

    daemon_threads = True

    def __init__(self, analysis: Analysis, port: int = 0) -> None:
        """Make the page and take the port; 0 is any free one. Raises OutputError where it is taken."""
        document, groups, names, zero = live(analysis)
        self.document = document.encode("utf-8")
        self.answers = Answers.of(analysis, groups, names, zero)
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "no such port"
            raise OutputError(f"port {port}: cannot be listened on ({reason}); name another with --port") from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """What a browser of this machine may call the server; another name is another site's trick."""
        return (f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}")

    def answer(self, path: str, query: dict[str, str]) -> tuple[str, bytes] | None:
        """Return the type and the body of what lies at a path behind the token, or None.

        Raises RequestError where the query makes no sense.
        """
        if path == "":
            return HTML, self.document
        if path == "marks":
            return BYTES, self.answers.marks(query)
        found: dict[str, Callable[[dict[str, str]], Any]] = {
            "measure": self.answers.measure,
            "find": self.answers.find,
            "partner": self.answers.partner,
        }
        return (JSON, json.dumps(found[path](query)).encode()) if path in found else None


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "traceview"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        _, _, rest = parts.path.partition("/")
        token, slash, path = rest.partition("/")
        known = secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
        if self.headers.get("Host") not in self.server.hosts or not known or not slash:
            return self._send(HTTPStatus.NOT_FOUND, TEXT, b"not found\n")
        try:
            found = self.server.answer(path, dict(parse_qsl(parts.query, max_num_fields=20)))
        except (RequestError, ValueError) as error:
            return self._send(HTTPStatus.BAD_REQUEST, TEXT, f"{error}\n".encode("utf-8", "replace"))
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, TEXT, b"not found\n")
        return self._send(HTTPStatus.OK, *found)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page asked for something newer meanwhile

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: an address holds the token."""
