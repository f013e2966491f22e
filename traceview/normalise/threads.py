"""Processes and threads as nsys packs them, and the names of threads (docs/definitions.md "Identity")."""

from __future__ import annotations

import ntpath
import posixpath
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.normalise.codes import distinct_rows, event_texts, positions, texts_of
from traceview.read import raw

MAX_THREAD_NAME = 40  # characters


def process_of(column: str) -> pl.Expr:
    """Return the process of a globalPid or globalTid column: (globalId >> 24) & 0xFFFFFF."""
    return ((pl.col(column).fill_null(0) // (1 << 24)) & 0xFFFFFF).cast(pl.Int32)


def process_ids(global_id: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the process of each globalPid or globalTid."""
    return ((global_id >> 24) & 0xFFFFFF).astype(np.int32)


class Threads(NamedTuple):
    """All threads that called CUDA or opened NVTX ranges, by ascending globalTid. A thread's number is its row."""

    global_tid: pl.Series

    @classmethod
    def from_tables(cls, tables: dict[str, pl.DataFrame]) -> Threads:
        """Collect the threads of the API and NVTX tables."""
        frames = (tables[name] for name in (raw.RUNTIME, raw.NVTX) if name in tables)
        ids = [distinct_rows(frame, ("globalTid",))["globalTid"] for frame in frames if not frame.is_empty()]
        return cls(pl.concat([pl.Series("globalTid", [], dtype=pl.Int64), *ids]).unique().sort())

    def rows(self, global_tid: pl.Series) -> pl.Series:
        """Return the row of each globalTid."""
        return pl.Series("thread", positions(global_tid.fill_null(0), self.global_tid))

    def main_row(self, process: int) -> int | None:
        """Return the row of a process's main thread, whose id is that of the process; None if it is unknown."""
        own = np.flatnonzero(process_ids(self.global_tid.to_numpy()) == process)
        main = own[(self.global_tid.to_numpy()[own] & 0xFFFFFF) == process]
        return int(main[0]) if len(main) else None

    def processes(self, thread: pl.Series) -> pl.Expr:
        """Return the process of each thread; a literal if there is only one process."""
        ids = process_ids(self.global_tid.to_numpy())
        is_same = len(ids) > 0 and ids.min() == ids.max()
        return pl.lit(int(ids[0]), pl.Int32) if is_same else pl.lit(pl.Series(ids[thread.to_numpy()]))

    def frame(self, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
        """Return the threads as a frame with the schema THREADS."""
        base = self.global_tid.to_frame("globalTid")
        names = [
            base.join(named, on="globalTid", how="left", maintain_order="left")["text"]
            for named in (system_names(tables), _annotated_names(tables))
        ]
        return base.select(
            process_of("globalTid").alias("process"),
            (pl.col("globalTid") & 0xFFFFFF).alias("tid"),
            pl.coalesce(*names, pl.lit("")).alias("name"),
        )


def system_names(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the names that threads have in the operating system."""
    named = tables.get(raw.THREAD_NAMES, pl.DataFrame())
    return _short_names(named, texts_of(named["nameId"], tables) if not named.is_empty() else [])


def _annotated_names(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the names that a program gives its threads with NVTX."""
    nvtx = tables.get(raw.NVTX, pl.DataFrame())
    named = nvtx.filter(pl.col("eventType") == raw.THREAD_NAMED) if not nvtx.is_empty() else nvtx
    return _short_names(named, [] if named.is_empty() else event_texts(named, tables).fill_null("").to_list())


def _short_names(named: pl.DataFrame, texts: list[str]) -> pl.DataFrame:
    """Return the threads (globalTid) with a name (text), without paths."""
    ids = named["globalTid"] if texts else pl.Series([], dtype=pl.Int64)
    names = pl.Series([without_path(text) for text in texts], dtype=pl.String)
    frame = pl.DataFrame({"globalTid": ids, "text": names}).filter(pl.col("text") != "")
    return frame.unique("globalTid", keep="first")


def without_path(name: str) -> str:
    """Return a thread's name without paths: some programs put their command line there."""
    first = name.split(" ")[0] if "/" in name or "\\" in name else name
    return ntpath.basename(posixpath.basename(first))[:MAX_THREAD_NAME].strip()
