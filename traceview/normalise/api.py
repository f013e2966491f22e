"""CUDA API calls: their names without version suffixes, and their roles, such as whether they block the thread.

GPU work is linked to the call that launched it by (process, correlation id) (docs/definitions.md "Identity").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks
from traceview.model.sizes import empty_frame
from traceview.model.trace import API, KINDS, MEMORIES, ROLES, Role
from traceview.normalise.codes import categories, distinct, enum_column, integers, name_column, translate
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import sort_by_time
from traceview.read import raw

SUFFIX = re.compile(r"(\d+v_|zstp_|sdtp_)+")  # in a reversed name: a search for the end of a name tries each place
HIP = re.compile("^hip")  # AMD's calls have the names of CUDA's
SYNC = re.compile(
    r"cuda(Device|Stream|Event)Synchronize|cu(Stream|Event|Ctx)Synchronize"
    # Unified Runtime and Level Zero, for Intel's GPUs
    r"|ur(QueueFinish|EventWait)|ze(CommandQueueSynchronize|(CommandList|Event|Fence)HostSynchronize)"
)
BLOCKING_COPY = re.compile(
    r"cudaMemcpy(2D|3D)?(ToArray|FromArray|ArrayToArray|ToSymbol|FromSymbol|WithStream)?"
    r"|cuMemcpy(2D|2DUnaligned|3D|[HDA]to[HDA])?"
)
ASYNC_COPY = re.compile(r"(cudaMemcpy|cuMemcpy)\w*Async")
MEMORY = re.compile(
    r"(cudaMalloc|cudaFree|cudaHostAlloc|cuMemAlloc|cuMemFree|cuMemHostAlloc|cuMemCreate|cuMemRelease"
    r"|cuMemMap|cuMemUnmap|cuMemSetAccess|cuMemAddress|cudaHost(Un)?[rR]egister|cuMemHost(Un)?[rR]egister)\w*"
)
IMPLICIT = re.compile(
    r"cudaFree|cudaMalloc|cudaHostAlloc|cudaFreeHost|cuMemFree|cuMemAlloc|cuMemHostAlloc|cuMemFreeHost"
)


def without_suffix(name: str) -> str:
    """Return `cudaMalloc` for `cudaMalloc_v3020_ptsz`."""
    suffix = SUFFIX.match(name[::-1])
    return name[: -suffix.end()] if suffix else name


def _cuda_names(names: pl.Series) -> list[str]:
    """Return the distinct names of calls, those of HIP as CUDA's."""
    return [HIP.sub("cuda", text) for text in categories(names)]


def role_of(name: str) -> str:
    """Return the role of a call by its name of CUDA alone, one of ROLES."""
    for role, pattern in (("sync", SYNC), ("blocking_copy", BLOCKING_COPY), ("memory", MEMORY)):
        if pattern.fullmatch(name):
            return role
    return "api"


def api_frame(tables: dict[str, pl.DataFrame], threads: Threads) -> pl.DataFrame:
    """Return model.API, sorted, with the roles that follow from names alone. Removes its table from `tables`."""
    calls = tables.pop(raw.RUNTIME, None)
    if calls is None or calls.is_empty():
        return empty_frame(API)
    calls = sort_by_time(calls)
    name = name_column(calls["nameId"], tables, without_suffix)
    texts = _cuda_names(name)
    code = name.to_physical().to_numpy()
    roles = np.array([ROLES.index(role_of(text)) for text in texts], np.uint8)
    implicit = np.array([bool(IMPLICIT.fullmatch(text) or BLOCKING_COPY.fullmatch(text)) for text in texts], np.uint8)
    thread = threads.rows(calls["globalTid"])
    return calls.select(
        "start",
        "end",
        name.alias("name"),
        enum_column(translate(code, roles), Role).alias("role"),
        pl.Series("implicit", translate(code, implicit).view(np.bool_)),
        thread,
        threads.processes(thread).alias("process"),
        pl.Series("correlation", integers(calls["correlationId"]).astype(np.uint32)),
    )


def with_pageable_copies(api: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Mark the Async copies that block because their host memory is pageable."""
    texts = _cuda_names(api["name"])
    is_async = np.array([bool(ASYNC_COPY.fullmatch(text)) for text in texts], np.bool_)
    if not is_async.any():
        return api
    copies = np.flatnonzero(operations["memory"].to_physical().eq_missing(MEMORIES.index("pageable")).to_numpy())
    if len(copies) == 0:
        return api
    pageable = operations[copies].filter(
        pl.col("kind").to_physical().is_in([KINDS.index(kind) for kind in ("h2d", "d2h", "h2h")])
        & pl.col("launch").is_not_null()
    )["launch"]
    rows = pageable.unique().to_numpy()
    code = api["name"].to_physical().to_numpy()
    rows = rows[is_async[code[rows]]]
    role = api["role"].to_physical().to_numpy().copy()
    implicit = api["implicit"].to_numpy().copy()
    role[rows] = ROLES.index("blocking_copy")
    implicit[rows] = True
    return api.with_columns(enum_column(role, Role).alias("role"), pl.Series("implicit", implicit))


MAX_TABLE_SPAN = 1 << 21  # correlation ids in a block usually differ by less

Ids = NDArray[np.uint32]


KEYS = {"process": pl.Int32, "correlation": pl.UInt32}


def with_keys(rows: pl.DataFrame, process: str = "globalPid") -> pl.DataFrame:
    """Return rows of an export's table with the columns KEYS; the column `process` has their process."""
    correlation = pl.col("correlationId").cast(pl.UInt32, strict=False).fill_null(0)
    return rows.with_columns(process_of(process).alias("process"), correlation.alias("correlation"))


def without_traced_graphs(graphs: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Leave out graphs whose kernels were also traced: their time would count twice."""
    if graphs.is_empty():
        return graphs
    traced = with_keys(kernels.select("globalPid", "correlationId")).filter(pl.col("correlation") != 0)
    return with_keys(graphs).join(traced, on=list(KEYS), how="anti", maintain_order="left").drop(KEYS)


class Links(NamedTuple):
    """API calls by process and correlation id; if an id repeats, the first call counts."""

    lookups: Mapping[int, _CallLookup]

    @classmethod
    def from_api(cls, api: pl.DataFrame) -> Links:
        """Collect the keys of model.API."""
        if api.is_empty():
            return cls({})
        correlation = api["correlation"].to_numpy()
        only = only_process(api)
        if only is not None:
            return cls({only: _CallLookup.from_ids(correlation, None)})
        process = api["process"].to_numpy()
        lookups = {}
        for number in distinct(api["process"].cast(pl.Int64)).to_list():
            rows = np.flatnonzero(process == number)
            lookups[number] = _CallLookup.from_ids(correlation[rows], rows)
        return cls(lookups)

    def rows(self, work: pl.DataFrame) -> pl.Series:
        """Return the row in model.API that launched each row of `work`; null for correlation id 0 and unknown ids.

        `work` has the columns process and correlation.
        """
        wanted = work["correlation"].to_numpy()
        only = only_process(work)
        if only is not None and only in self.lookups:
            rows = self.lookups[only].rows(wanted)
        else:
            rows = np.full(len(wanted), -1, np.int32)
            for number, lookup in self.lookups.items() if only is None else ():
                own = np.flatnonzero(work["process"].to_numpy() == number)
                rows[own] = lookup.rows(wanted[own])
        # 0 is not a key: unified-memory copies have it, and no call launched them.
        missing = (rows < 0) | (wanted == 0)
        series = pl.Series("launch", rows)
        return series.set(pl.Series(missing), None) if missing.any() else series


def only_process(frame: pl.DataFrame) -> int | None:
    """Return the process of all rows; None if there are several processes or no rows."""
    # Converting the column to an array would expand a literal that stands for all rows.
    low, high = frame.select(low=pl.col("process").min(), high=pl.col("process").max()).row(0)
    return low if low == high else None


class _CallLookup(NamedTuple):
    """Ascending unique correlation ids, and the row of each call; `call_rows` is None if row i has the i-th id."""

    keys: Ids
    call_rows: NDArray[np.int64] | None

    @classmethod
    def from_ids(cls, keys: Ids, rows: NDArray[np.int64] | None) -> _CallLookup:
        """Sort the ids of at least one call; `rows` are the calls' rows, None for 0, 1, 2, ..."""
        if (keys[1:] > keys[:-1]).all():
            return cls(keys, rows)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        order = order[first]
        return cls(ordered[first], order if rows is None else rows[order])

    def rows(self, wanted: Ids) -> NDArray[np.int32]:
        """Return the row of each id; -1 for unknown ids."""
        out = np.empty(len(wanted), np.int32)
        buffer = np.empty(MAX_TABLE_SPAN, np.int32)
        for block in blocks(len(wanted)):
            ids = wanted[block]
            low, high = ids.min(), ids.max()
            # Work that runs at about the same time was launched at about the same time: a small table is enough.
            if high - low < MAX_TABLE_SPAN:
                first, last = np.searchsorted(self.keys, low), np.searchsorted(self.keys, high, side="right")
                table = buffer[: int(high - low) + 1]
                table.fill(-1)
                table[self.keys[first:last] - low] = self._rows_at(slice(first, last))
                out[block] = table[ids - low]
            else:
                position = np.minimum(np.searchsorted(self.keys, ids), len(self.keys) - 1)
                out[block] = np.where(self.keys[position] == ids, self._rows_at(position), -1)
        return out

    def _rows_at(self, positions: slice | NDArray[np.intp]) -> NDArray[np.integer[Any]]:
        if self.call_rows is not None:
            return self.call_rows[positions]
        if isinstance(positions, slice):
            return np.arange(positions.start, positions.stop, dtype=np.int32)
        return positions
