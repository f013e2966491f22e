"""How such a trace is known."""

from __future__ import annotations

PROFILER = "torch.profiler"
BLANK = b" \t\r\n\xef\xbb\xbf"


def is_trace(head: bytes) -> bool:
    """May a file that begins so be a JSON document?"""
    return head.lstrip(BLANK).startswith((b"{", b"["))
