"""Many reports at once: one small result each, read by processes or a Dask cluster, then a merge.

    sources -> run_local | run_dask -> one small ReportResult each -> merge: match, offsets, skew, stragglers -> Fleet

Nothing is imported here, so that a worker can set its threads before polars starts.
"""
