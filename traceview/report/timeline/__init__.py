"""The timeline of the page: rows with lanes of marks, their levels of detail, and how they fit into a page.

inputs.py    what a page shows of a capture
work.py      classes of work: the looks of marks, and the bands that lead each device
marks.py     the marks of a lane as columns, and names
rows.py      the rows: devices with their streams, processes with their threads and samples of stacks
levels.py    marks merged into bins of time: levels of detail of each lane
places.py    the places with full detail
sums.py      sums by bin of time, for areas whose events the page lacks
packing.py   what of it fits into the page, and the places of each name for the search
"""

from __future__ import annotations
