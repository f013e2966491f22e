"""Reads a capture in any supported format into a RawCapture: the tables that the analysis needs."""

from traceview.read.formats import read_capture
from traceview.read.raw import RawCapture
from traceview.read.sqlite.reader import read_sqlite

__all__ = ["RawCapture", "read_capture", "read_sqlite"]
