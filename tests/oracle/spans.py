"""Sets of time as sorted lists of disjoint (start, end) pairs."""

from __future__ import annotations

from bisect import bisect_right

Span = tuple[int, int]


def union(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)


def intersect(left: list[Span], right: list[Span]) -> list[Span]:
    common = []
    here = there = 0
    while here < len(left) and there < len(right):
        start = max(left[here][0], right[there][0])
        end = min(left[here][1], right[there][1])
        if start < end:
            common.append((start, end))
        if left[here][1] < right[there][1]:
            here += 1
        else:
            there += 1
    return common


def inside(spans: list[Span], start: int, end: int) -> list[Span]:
    """Return the part of a union inside [start, end)."""
    first = max(bisect_right(spans, (start, start)) - 1, 0)
    found = []
    for index in range(first, len(spans)):  # a part would copy the rest for each query
        low, high = spans[index]
        if low >= end:
            break
        if high > start:
            found.append((max(low, start), min(high, end)))
    return found


def free(spans: list[Span], start: int, end: int) -> list[Span]:
    """Return the part of [start, end) that a union does not cover."""
    left = []
    at = start
    for low, high in inside(spans, start, end):
        if low > at:
            left.append((at, low))
        at = high
    if at < end:
        left.append((at, end))
    return left


def without(left: list[Span], right: list[Span]) -> list[Span]:
    return [piece for start, end in left for piece in free(right, start, end)]
