"""Threads that called CUDA or carried NVTX ranges."""

from __future__ import annotations

import ntpath
import posixpath
from dataclasses import dataclass

import polars as pl

from traceview.normalise.codes import different_rows, places
from traceview.normalise.identity import process_of, processes_of
from traceview.normalise.names import texts_of
from traceview.read import raw

LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Threads:
    """All threads of a capture, by ascending globalTid: a thread is its row number."""

    global_tid: pl.Series

    @classmethod
    def of(cls, tables: dict[str, pl.DataFrame]) -> Threads:
        """Collect the threads of the API and NVTX tables."""
        some = (tables[name] for name in (raw.RUNTIME, raw.NVTX) if name in tables)
        found = [different_rows(table, ("globalTid",))["globalTid"] for table in some if not table.is_empty()]
        every = pl.concat([pl.Series("globalTid", [], dtype=pl.Int64), *found])
        return cls(every.unique().sort())

    def rows(self, global_tid: pl.Series) -> pl.Series:
        """Return the row number of each thread."""
        return pl.Series("thread", places(global_tid.fill_null(0), self.global_tid))

    def processes(self, thread: pl.Series) -> pl.Expr:
        """Return the process of each thread; where there is but one, one value that stands for all rows."""
        of = processes_of(self.global_tid.to_numpy())
        alike = len(of) > 0 and of.min() == of.max()
        return pl.lit(int(of[0]), pl.Int32) if alike else pl.lit(pl.Series(of[thread.to_numpy()]))

    def frame(self, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
        """Return model.THREADS."""
        base = self.global_tid.to_frame("globalTid")
        named = tables.get("ThreadNames", pl.DataFrame())
        if named.is_empty():
            names = pl.Series([""] * len(base), dtype=pl.String)
        else:
            first = named.unique("globalTid", keep="first")
            ids = base.join(first, on="globalTid", how="left", maintain_order="left")["nameId"]
            texts = texts_of(ids, tables)
            known = ids.is_not_null().to_list()
            names = pl.Series(
                [plain(text) if ok else "" for text, ok in zip(texts, known, strict=True)], dtype=pl.String
            )
        return base.select(
            process_of("globalTid").alias("process"),
            (pl.col("globalTid") & 0xFFFFFF).alias("tid"),
            names.alias("name"),
        )


def plain(name: str) -> str:
    """Return a thread's name without any path: a program may put its whole command there."""
    first = name.split(" ")[0] if "/" in name or "\\" in name else name
    return ntpath.basename(posixpath.basename(first))[:LONGEST_NAME]
