"""One HTML document, whole and offline: the answer, the timeline, and everything behind it.

page.html, *.css, *.js   the page as a person sees it; data files, put together by document.py
sections.py              what the page says in words and figures, taken from the Analysis as it is
timeline.py              the rows of the timeline and their marks
bands.py                 what a device did at each moment: compute, communication, copies, idle
summary.py               fewer marks, where a capture has more than a page can hold
columns.py               marks as packed columns; the script's columns.js is the other half
"""

from traceview.report.html.page import render

__all__ = ["render"]
