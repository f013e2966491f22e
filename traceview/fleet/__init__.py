"""Analysis of many reports: workers measure each report, then the small results are merged into one Fleet.

sources.py            expands folders and patterns to reports
local_workers.py      reads reports in processes of this machine; dask_workers.py on a Dask cluster
worker.py             runs in a worker: measure_report.py makes one ReportResult, serialization.py packs it
merge.py              merges results: iterations, match, groups, clocks, waits, rank_figures, stragglers

This module imports nothing, so that a worker can limit its threads before polars starts.
"""
