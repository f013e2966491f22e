"""Interval algebra on sorted int64 arrays. Every figure rests on it.

`algebra` holds the operations on unions, `coverage` the length of a union before many moments, and `arrays` the
functions on arrays that both use, with hashes that find equal rows.
"""

from traceview.intervals.algebra import (
    BEFORE_ALL,
    EMPTY,
    Intervals,
    QueryParts,
    clip,
    complement,
    gaps_between,
    intersect,
    length,
    merge_disjoint,
    ordered_union,
    overlap_length,
    own_lengths,
    parts_in_queries,
    subtract,
    union,
    union_length,
)
from traceview.intervals.arrays import (
    BLOCK,
    Rows,
    Times,
    blocks,
    distinct_rows,
    first_equal_rows,
    index_ranges,
    is_sorted,
    number_distinct,
    row_hashes,
    rows_where,
    sorted_unique,
)
from traceview.intervals.coverage import Coverage, covered_length

__all__ = [
    "BEFORE_ALL",
    "BLOCK",
    "EMPTY",
    "Coverage",
    "Intervals",
    "QueryParts",
    "Rows",
    "Times",
    "blocks",
    "clip",
    "complement",
    "covered_length",
    "distinct_rows",
    "first_equal_rows",
    "gaps_between",
    "index_ranges",
    "intersect",
    "is_sorted",
    "length",
    "merge_disjoint",
    "number_distinct",
    "ordered_union",
    "overlap_length",
    "own_lengths",
    "parts_in_queries",
    "row_hashes",
    "rows_where",
    "sorted_unique",
    "subtract",
    "union",
    "union_length",
]
