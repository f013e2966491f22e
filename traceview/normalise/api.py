"""CUDA API calls: their names without version suffixes, and their roles, such as whether they block the thread."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from traceview.model.sizes import empty_frame
from traceview.model.trace import API, KINDS, MEMORIES, ROLES, Role
from traceview.normalise.codes import categories, enum_column, integers, name_column, translate
from traceview.normalise.order import sort_by_time
from traceview.normalise.threads import Threads
from traceview.read import raw

SUFFIX = re.compile(r"(\d+v_|zstp_|sdtp_)+")  # in a reversed name: a search for the end of a name tries each place
SYNC = re.compile(r"cuda(Device|Stream|Event)Synchronize|cu(Stream|Event|Ctx)Synchronize")
BLOCKING_COPY = re.compile(
    r"cudaMemcpy(2D|3D)?(ToArray|FromArray|ArrayToArray|ToSymbol|FromSymbol)?"
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


def role_of(name: str) -> str:
    """Return the role of a call by its name alone, one of ROLES."""
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
    texts = categories(name)
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
    texts = categories(api["name"])
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
