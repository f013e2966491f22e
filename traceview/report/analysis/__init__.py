"""One HTML document, whole and offline: the answer, the timeline, and everything behind it.

document.py              the page's text: the files of report/assets filled with data
sections.py              what the page says in words and figures, taken from the Analysis as it is
charts.py                what the charts show
timeline.py              the rows of the timeline and their marks, fitted into the page
  rows.py, lanes.py      rows and groups; streams, API calls and ranges as marks; mark_styles.py names their styles
  bands.py               what a device did at each moment: compute, communication, copies, idle
  lane.py                a line of marks, merged into levels
  detail.py              what the page holds of the lanes, from coarse to fine: all, or levels and places in full
  chunks.py              the packed chunks, and what is left of the byte budget
  pyramid.py, summary.py bins of doubling widths; neighbours merged into one mark
  places.py              where full detail matters
  tally.py, index.py     sums per bin for measuring, places of names for searching, where events are merged
columns.py               marks as packed columns; the script's columns.js is the other half
"""

from traceview.report.analysis.page import DETAIL, render

__all__ = ["DETAIL", "render"]
