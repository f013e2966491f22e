"""Finished answers about a capture, kept for the next time that the same is asked.

look.py       one look at one report: what is known already, and what to keep
question.py   everything but the capture that an answer depends on: options, version, source, nsys
content.py    the capture itself, by what it holds
store.py      entries on disk: checked when read, whole or absent, private, bounded
place.py      where they lie
"""

from traceview.cache.look import Look
from traceview.cache.place import folder
from traceview.cache.store import Store

__all__ = ["Look", "Store", "folder"]
