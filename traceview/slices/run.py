"""Slices of a trace in memory, and the measures of slices in worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from traceview.model.trace import Trace, Window
from traceview.slices.measure import BEGINNING, END, Extents, Slice


def slice_windows(borders: Sequence[int], window: Window | None) -> tuple[Window, ...]:
    """Return the windows between borders, which ascend; the outer ones reach to the edges of `window`, or of time."""
    first, last = (BEGINNING, END) if window is None else (window.start, window.end)
    inside = [border for border in borders if first < border < last]
    return tuple(Window(*edges) for edges in pairwise([first, *inside, last]))


def slices_in_memory(
    trace: Trace, borders: Sequence[int], extents: Extents, steady: Mapping[int, Window], top: int
) -> Iterator[Slice]:
    """Yield the slices of a complete trace; `steady` is the steady part of each device."""
    for index, window in enumerate(slice_windows(borders, trace.window)):
        yield Slice(index, trace.with_window(window), extents, steady, top)
