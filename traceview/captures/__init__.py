"""Capture files: record a program, see what a capture contains, and write it for other tools or to share.

record.py          records a program with nsys, and checks whether this machine can
info.py            what a capture contains, and what it lacks
export/            a capture in the formats of other tools
redact.py          a copy of a capture with only what traceview reads, to share
"""
