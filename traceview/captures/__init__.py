"""Capture files: record a program, see what a capture contains, and make a copy that can be shared.

record.py          records a program with nsys, and checks whether this machine can
info.py            what a capture contains, and what it lacks
redact/            a copy of a capture with only what traceview reads, to share
"""
